-- Ends of runs that no worker's commit has made, for the spans of these runs.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (26, 'ends_to_trace');

create table holdfast.ends_to_trace (
    run_id uuid primary key,
    ended_at timestamptz not null
);

-- One row, if workers have ever written traces: ends are kept until then.
create table holdfast.tracing (
    is_the_row boolean primary key default true,
    until timestamptz not null,
    constraint tracing_has_one_row check (is_the_row)
);

commit;
