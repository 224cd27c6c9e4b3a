-- What no run and no task can be, in one CHECK each. PostgreSQL reads the trees of all CHECKs of a
-- table again in each statement that writes: that took a third of a start. It reads one call here,
-- and PL/pgSQL keeps the rest. Rows of before have passed the same conditions, so none is read.
--
-- Both functions run in whatever path a session has, since a path of their own would cost each row
-- more than the checks. So each operator has its schema.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (57, 'quick_checks');

-- Return true if there can be such a run: all is known, it has an end if it does not run, and what
-- belongs to that, and all of a parent or nothing.
create function holdfast._is_possible_run(
    p_kind text, p_priority smallint, p_status text, p_completed_at timestamptz, p_output json,
    p_error json, p_parent_run_id uuid, p_parent_key text, p_parent_close text
) returns boolean
language plpgsql immutable parallel safe
as $$
begin
    return p_kind operator(pg_catalog.=) any ('{workflow,flow}')
        and p_priority operator(pg_catalog.=) any ('{0,1,2,3,4}')
        and p_status operator(pg_catalog.=) any (
            '{running,completed,failed,cancelled,timed_out,terminated,continued}')
        and (p_status operator(pg_catalog.=) 'running')
            operator(pg_catalog.=) (p_completed_at is null)
        and (p_output is null or p_status operator(pg_catalog.=) any ('{completed,continued}'))
        and (p_error is null or p_status operator(pg_catalog.=) 'failed')
        and (p_parent_run_id is null) operator(pg_catalog.=) (p_parent_key is null)
        and (p_parent_run_id is null) operator(pg_catalog.=) (p_parent_close is null)
        and p_parent_close operator(pg_catalog.=) any ('{terminate,cancel,abandon}');
end $$;

-- Return true if there can be such a task: all is known, and a lease has a number.
create function holdfast._is_possible_task(
    p_kind text, p_priority smallint, p_attempts int, p_worker text, p_lease_no int
) returns boolean
language plpgsql immutable parallel safe
as $$
begin
    return p_kind operator(pg_catalog.=) any (
            '{workflow,flow,activity,step,child,approval,deadline,deliver}')
        and p_priority operator(pg_catalog.=) any ('{0,1,2,3,4}')
        and p_attempts operator(pg_catalog.>=) 0
        and (p_worker is null or p_lease_no operator(pg_catalog.>) 0);
end $$;

alter table holdfast.runs
    drop constraint runs_kind_is_known,
    drop constraint runs_status_is_known,
    drop constraint runs_priority_in_range,
    drop constraint runs_end_has_a_moment,
    drop constraint runs_output_means_completed,
    drop constraint runs_error_means_failed,
    drop constraint runs_parent_close_is_known,
    drop constraint runs_child_has_a_parent,
    add constraint runs_are_possible check (holdfast._is_possible_run(
        kind, priority, status, completed_at, output, error,
        parent_run_id, parent_key, parent_close)) not valid;

alter table holdfast.tasks
    drop constraint tasks_kind_is_known,
    drop constraint tasks_priority_in_range,
    drop constraint tasks_attempts_are_counted,
    drop constraint tasks_lease_has_a_number,
    add constraint tasks_are_possible check (holdfast._is_possible_task(
        kind, priority, attempts, worker, lease_no)) not valid;

commit;
