-- Indexes for lists of runs at a million runs: no more entries a run than before.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (6, 'lists');

-- A status of one workflow is a range of this index, and so is a workflow that nobody has.
create index runs_by_name_and_status on holdfast.runs (name, status, created_at, run_id);
drop index holdfast.runs_by_name;

create index runs_by_parent_in_order on holdfast.runs (parent_run_id, created_at, run_id)
    where parent_run_id is not null;
drop index holdfast.runs_by_parent;
alter index holdfast.runs_by_parent_in_order rename to runs_by_parent;

create index tasks_stuck on holdfast.tasks (run_id) where stuck is not null;
create index tasks_paused on holdfast.tasks (run_id) where paused;

-- Without it the newest events are in no summary, and a look at the last seconds reads them all.
alter index holdfast.events_by_time set (autosummarize = on);
alter table holdfast.events set (
    autovacuum_vacuum_insert_scale_factor = 0.02,
    autovacuum_vacuum_insert_threshold = 10000
);

commit;
