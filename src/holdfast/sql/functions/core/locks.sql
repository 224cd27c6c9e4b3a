-- Lock rows in one order: turns by run id, other tasks by run id and key, then runs. Hold runs.

-- Lock the turn rows of runs, by run_id. Returns the runs that have one: what changes runs from
-- outside leaves others alone, which may be started while it waits. Called by commit and by all
-- that change runs from outside.
create or replace function holdfast._lock_turns(p_run_ids uuid[]) returns uuid[]
language plpgsql
as $$
begin
    return array(
        select u.run_id
        from (
            select distinct u.run_id from unnest(p_run_ids) as u (run_id) order by u.run_id
        ) as u
        cross join lateral (
            select from holdfast.tasks t where t.run_id = u.run_id and t.key = '' for update
        ) as t);
end $$;

-- Lock task rows by (run_id, key). The lock is a statement of its own: a statement that waited for
-- a row while its holder changed it would not see the row's new place, and would change nothing.
-- Called by _end_attempts, _correct_units, _cancel_activities, time_out_activities and
-- end_step_tasks.
create or replace function holdfast._lock_tasks(p_run_ids uuid[], p_keys text[]) returns void
language plpgsql
as $$
begin
    perform from (
        select * from unnest(p_run_ids, p_keys) as u (run_id, key) order by u.run_id, u.key
    ) as u
    cross join lateral (
        select from holdfast.tasks t where t.run_id = u.run_id and t.key = u.key for update
    ) as t;
end $$;

-- Lock rows of runs by run_id, for a change in a later statement, as in _lock_tasks: tags change
-- without the turn row. Called by _end_runs, move_to_build, reschedule_runs,
-- _carry_out and _take_over_children.
create or replace function holdfast._lock_runs(p_run_ids uuid[]) returns void
language plpgsql
as $$
begin
    perform from (
        select distinct u.run_id from unnest(p_run_ids) as u (run_id) order by u.run_id
    ) as u
    cross join lateral (
        select from holdfast.runs r where r.run_id = u.run_id for no key update
    ) as r;
end $$;

-- Hold runs, so that none of them is deleted before this transaction ends. Returns true if all of
-- them exist. A row that is held can still change: the run can end.
-- What is left of a run of which a part is deleted is deleted, and does not count.
-- Locks: as _finish_deletions; the runs FOR KEY SHARE, by run_id. Called by _start_runs,
-- _start_flows, _start_ruled, fork_run, fork_flow and retry_flow.
create or replace function holdfast._hold_runs(p_run_ids uuid[]) returns boolean
language plpgsql
as $$
declare
    v_held int;
    v_asked int;
begin
    perform holdfast._finish_deletions(p_run_ids);
    select count(r.run_id), count(*) into v_held, v_asked
    from (
        select distinct u.run_id from unnest(p_run_ids) as u (run_id) order by u.run_id
    ) as u
    left join lateral (
        select r.run_id from holdfast.runs r where r.run_id = u.run_id for key share
    ) as r on true;
    return v_held = v_asked;
end $$;
