-- Results of transactions above read committed, from their commits until the logs have them: their
-- snapshots do not see what was appended to a log meanwhile, so they cannot append to it.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (46, 'step_results');

create table if not exists holdfast.step_results (  -- as sql/step_results.sql makes it elsewhere
    run_id uuid not null,
    key text not null,
    result json not null,
    recorded_at timestamptz not null default now(),
    primary key (run_id, key)
);
create index if not exists step_results_by_age on holdfast.step_results (recorded_at);

commit;
