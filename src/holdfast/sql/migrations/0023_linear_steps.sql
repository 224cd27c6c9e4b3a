-- What the functions of flows hand each other about steps that are followed by one step.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (23, 'linear_steps');

-- An attempt that is open, and what begins by its end: '' for the end of the run.
create type holdfast._linear_end as (
    place int, tid tid, run_id uuid, handler text, step_slug text, output json, attempts int,
    worker text, started_at timestamptz, next_slug text, wants_run boolean, queue text,
    priority smallint, paused boolean, is_handed boolean);

commit;
