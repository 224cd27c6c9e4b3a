-- Stop runs from outside: cancel, terminate, time out.
--
-- Every function that changes runs from outside, also one that sends signals, first locks the turn
-- rows of its runs, by run_id. So no other such function, and no commit that suspends or ends a
-- run, can change them meanwhile. Only checkpoints may append at the same time; then the append is
-- tried again. A task that is free is woken. A leased task is never changed: its worker is
-- notified. Functions that end runs also lock the rows of their parents and children. All events of
-- a call are in the logs before the first parent is told.
--
-- Outcomes are in the order given: 'delivered', 'duplicate', 'ended', 'missing'. Notices are
-- (topic, payload).

-- Ask runs to stop: append WorkflowCancelRequested once, and wake the run, so that its code can
-- clean up. If no worker ever had the run, nor the run of which it is a fork, it has nothing to
-- clean up and ends at once. A second request is a duplicate. Refuses nulls among the ids (22004)
-- and a reason or a p_by (who asks) that is too long (22023).
-- Locks: turn rows as _lock_family, of the runs and their parents; then events and runs, by run_id.
-- Called by clients.
create or replace function holdfast.cancel_runs(
    p_run_ids uuid[], p_reason text default null, p_by text default null,
    out outcomes text[], out notices text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_locked uuid[];
    v_asked uuid[];
begin
    perform holdfast._check_change(p_run_ids, p_reason, p_by);
    v_locked := holdfast._lock_family(p_run_ids || holdfast._parents(p_run_ids), '{}');
    v_locked := array(select unnest(p_run_ids) intersect select unnest(v_locked));
    select c.asked, c.notices into v_asked, notices
    from holdfast._cancel(holdfast.now(), v_locked, array_fill(
        holdfast._reason(p_reason, p_by), array[cardinality(v_locked)])) as c;
    outcomes := holdfast._outcomes(p_run_ids, v_locked, v_asked);
end $$;

-- Ask runs to stop, except those that were asked before; p_details are the details of the requests.
-- `asked` are the runs that were asked now, each once, in no order. A run of a flow ends at once,
-- or, if it has begun and has steps that always run at the end, after these.
-- Locks: expects the turn rows of the runs and of their parents locked; events and runs; as
-- _cancel_flows. Called by cancel_runs, _cancel_children, _close_children, _cancel_child_steps and
-- _stop_open.
create or replace function holdfast._cancel(
    p_now timestamptz, p_run_ids uuid[], p_details json[], out asked uuid[], out notices text[]
)
language plpgsql
as $$
declare
    v_details json[];
    v_untouched uuid[];
    v_lasting uuid[];
begin
    select array_agg(u.run_id), array_agg(u.details),
        array_agg(u.run_id) filter (where u.started_at is null or u.kind = 'flow'),
        array_agg(u.run_id) filter (
            where u.kind = 'flow' and holdfast._has_last_steps(p_now, u.run_id, u.handler))
    into asked, v_details, v_untouched, v_lasting
    from (
        select distinct on (u.run_id) u.run_id, u.details, t.started_at, t.kind, t.handler
        from unnest(p_run_ids, p_details) with ordinality as u (run_id, details, place)
        cross join lateral (
            select coalesce(t.clock_at, t.started_at) as started_at, t.kind, t.handler
            from holdfast.tasks t
            where t.run_id = u.run_id and t.key = '' limit 1
        ) as t
        where not exists (
            select from holdfast.events e
            where e.run_id = u.run_id and e.event_type = 'WorkflowCancelRequested' offset 0)
        order by u.run_id, u.place
    ) as u;
    if asked is null then
        return;
    end if;
    asked := holdfast._append_each(p_now, asked, 'WorkflowCancelRequested', v_details);
    if v_lasting is not null then
        notices := holdfast._cancel_flows(p_now, v_lasting);
        v_untouched := array(select unnest(v_untouched) except select unnest(v_lasting));
    end if;
    if v_untouched is not null then
        select _cancel.notices || e.notices into notices
        from holdfast._end_each(p_now, v_untouched, 'cancelled', 'WorkflowCanceled') as e;
    end if;
    notices := notices || holdfast._wake_each(p_now, case when v_lasting is null then asked
        else array(select unnest(asked) except select unnest(v_lasting)) end);
end $$;

-- End runs at once, without their code: WorkflowTerminated. Refuses what cancel_runs does.
-- Locks: turn rows as _lock_family, then events and runs, by run_id. Called by clients.
create or replace function holdfast.terminate_runs(
    p_run_ids uuid[], p_reason text default null, p_by text default null,
    out outcomes text[], out notices text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_locked uuid[];
    v_ended uuid[];
begin
    perform holdfast._check_change(p_run_ids, p_reason, p_by);
    v_locked := holdfast._lock_family(p_run_ids || holdfast._parents(p_run_ids), p_run_ids);
    v_locked := array(select unnest(p_run_ids) intersect select unnest(v_locked));
    select e.ended, e.notices into v_ended, notices
    from holdfast._end_each(holdfast.now(), v_locked, 'terminated', 'WorkflowTerminated',
        array_fill(holdfast._reason(p_reason, p_by), array[cardinality(v_locked)])) as e;
    outcomes := holdfast._outcomes(p_run_ids, v_locked, v_ended);
end $$;

-- End runs past their deadline, the longest overdue first: append WorkflowTimedOut. `next_due_at`
-- is the next deadline, null for none. A run is left for the next call if another transaction has
-- its turn row or its parent's.
-- Locks: turn rows as _lock_families, then events and runs, by run_id. Called by maintenance, in
-- any number of processes at once.
create or replace function holdfast.time_out_runs(
    p_limit int, out ended int, out next_due_at bigint, out notices text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_run_ids uuid[];
begin
    ended := 0;
    select array_agg(r.run_id) into v_run_ids
    from (
        select r.run_id from holdfast.runs r
        where r.deadline_at is not null and r.status = 'running' and r.deadline_at <= v_now
        order by r.deadline_at limit p_limit
    ) as r;
    if v_run_ids is not null then
        v_run_ids := holdfast._lock_families(v_run_ids);
        v_run_ids := array(  -- a deadline may have been moved before its run was locked
            select u.run_id from unnest(v_run_ids) as u (run_id)
            cross join lateral (
                select r.deadline_at from holdfast.runs r where r.run_id = u.run_id limit 1
            ) as r
            where r.deadline_at <= v_now);
        select cardinality(e.ended), e.notices into ended, notices
        from holdfast._end_each(v_now, v_run_ids, 'timed_out', 'WorkflowTimedOut') as e;
    end if;
    -- not min(): planned while no run has a deadline, it reads all entries of the index
    select holdfast._micros(r.deadline_at) into next_due_at
    from holdfast.runs r
    where r.deadline_at is not null and r.status = 'running'
    order by r.deadline_at limit 1;
end $$;

-- Refuse a null among the ids of runs to change, and a reason or a name that is too long. Called by
-- cancel_runs, terminate_runs, pause_runs, resume_runs and reschedule_runs.
create or replace function holdfast._check_change(p_run_ids uuid[], p_reason text, p_by text)
returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('the run ids', p_run_ids is not null);
    perform holdfast._check_given('a run id', (
        select count(*) = count(u.run_id) from unnest(p_run_ids) as u (run_id)));
    perform holdfast._check_text('a reason', p_reason);
    perform holdfast._check_text('who changes a run', p_by);
end $$;

-- Return the details of an event that ends, stops or pauses a run: why, and by whom if it is known.
create or replace function holdfast._reason(p_reason text, p_by text default null) returns json
language sql immutable
as $$
    select ('{"reason":' || coalesce(to_json(p_reason)::text, 'null')
        || coalesce(',"by":' || to_json(p_by)::text, '') || '}')::json
$$;
