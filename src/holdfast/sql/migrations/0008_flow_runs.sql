-- Steps of flows that are runs: of a workflow, or of another flow.
--
-- The task of such a step, or of an element of such a map, has the kind 'child': no worker claims
-- it, and the end of the run that it stands for ends it.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (8, 'flow_runs');

alter table holdfast.tasks
    drop constraint tasks_kind_is_known,
    add constraint tasks_kind_is_known check (kind in (
        'workflow', 'flow', 'activity', 'step', 'child', 'approval', 'deadline', 'deliver'));

alter table holdfast.steps
    add column runs text,  -- name@version of what its task is a run of; null: a worker does it
    add column runs_kind text,
    add constraint steps_runs_is_a_handler check (runs ~ '^[^@]+@[1-9][0-9]*$'),
    add constraint steps_runs_kind_is_known check (runs_kind in ('workflow', 'flow')),
    add constraint steps_runs_has_a_kind check ((runs is null) = (runs_kind is null)),
    add constraint steps_runs_has_one_source check (runs is null or deps_count <= 1);
create index steps_with_runs on holdfast.steps (handler) where runs is not null;

commit;
