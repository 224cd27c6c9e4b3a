-- Activities as commands: scheduled, and asked to stop, by the commit of their run.
--
-- An activity is a row of tasks with the details of its ActivityScheduled as payload. The row is
-- deleted when the activity's end is written to the log. `claimed_idx` is 0 while no attempt is
-- open: before the first claim, and between a failure and the next claim. The lease number does not
-- say that, because a retry keeps the number of the failed attempt's lease.

-- Return the moment p_seconds after p_at; null for never. Timestamps end, so p_seconds is limited
-- to 10,000,000,000.
create or replace function holdfast._after(p_at timestamptz, p_seconds float8)
returns timestamptz
language sql stable parallel safe
return case when p_seconds is not null
    then p_at + least(p_seconds, 1e10::float8) * interval '1 second' end;

-- Write the tasks of activities whose ActivityScheduled is in the log; one without a priority has
-- that of its run. Returns (topic, payload) notices.
-- Locks: nothing that others wait for; expects the turn rows locked. Called by _carry_out.
create or replace function holdfast._schedule_activities(
    p_now timestamptz, p_run_ids uuid[], p_keys text[], p_details json[]
) returns text[]
language plpgsql
as $$
declare
    v_notices text[];
begin
    with scheduled as (
        insert into holdfast.tasks (
            run_id, key, kind, queue, handler, priority, visible_at, payload, deadline_at, paused)
        select u.run_id, u.key, 'activity', u.details ->> 'queue',
            (u.details ->> 'activity_name') || '@0',
            coalesce((u.details ->> 'priority')::int, t.priority), p_now,
            u.details, holdfast._after(p_now, (u.details ->> 'schedule_to_close')::float8),
            t.paused
        from unnest(p_run_ids, p_keys, p_details) with ordinality
            as u (run_id, key, details, place)
        cross join lateral (
            select t.paused, t.priority from holdfast.tasks t
            where t.run_id = u.run_id and t.key = '' limit 1
        ) as t
        order by u.place  -- of what is due at one moment, the index finds the first written first
        returning queue
    )
    select array_agg(array[holdfast._hint_topic('activities', q.tasks), q.queue]) into v_notices
    from (select s.queue, count(*) as tasks from scheduled s group by s.queue) as q;
    return v_notices;
end $$;

-- Return true if a run waits for the end of an activity that it has asked to stop; p_payload is
-- that of the activity's row. Called by all that end or delete activities that were asked to stop.
create or replace function holdfast._is_waited_out(p_payload json) returns boolean
language sql immutable parallel safe
return coalesce(p_payload ->> 'on_cancel' = 'wait', false);

-- Return the error of an activity that stopped because it was asked to. Called by _tell_stopped and
-- _end_attempts.
create or replace function holdfast._stopped_error() returns json
language sql immutable parallel safe
return '{"kind":"asyncio.exceptions.CancelledError","message":"the activity was cancelled"}'::json;

-- Tell runs of the ends of activities that were asked to stop, and that no worker has any more;
-- p_rows are as they were when they were deleted. Only runs that wait for such an end are told.
-- Returns (topic, payload) notices.
-- Locks: expects the turn rows locked; events, run by run. Called by _cancel_activities and
-- _lock_lost.
create or replace function holdfast._tell_stopped(p_now timestamptz, p_rows holdfast.tasks[])
returns text[]
language plpgsql
as $$
declare
    v_run record;
    v_notices text[];
begin
    for v_run in
        select t.run_id, array_agg('ActivityFailed'::text) as types,
            array_agg(t.key order by t.key) as keys, array_agg(e.details order by t.key) as details
        from unnest(p_rows) as t
        cross join lateral holdfast._attempt_event('recorded', t.handler, t.attempts,
            t.lease_no, t.worker, null, null, holdfast._stopped_error(), false, null) as e
        where holdfast._is_waited_out(t.payload)
        group by t.run_id order by t.run_id
    loop
        v_notices := v_notices || holdfast._tell_ends(
            p_now, v_run.run_id, v_run.types, v_run.keys, v_run.details, true);
    end loop;
    return v_notices;
end $$;

-- Stop activities that their runs no longer want: delete those that no worker has, notify the
-- workers that execute the others. Returns (topic, payload) notices.
-- Locks: expects the turn rows locked; task rows by (run_id, key); as _tell_stopped. Called by
-- _carry_out.
create or replace function holdfast._cancel_activities(
    p_now timestamptz, p_run_ids uuid[], p_keys text[]
) returns text[]
language plpgsql
as $$
declare
    v_notices text[];
    v_forgotten holdfast.tasks[];
begin
    perform holdfast._lock_tasks(p_run_ids, p_keys);
    with found as materialized (
        select t.* from unnest(p_run_ids, p_keys) as u (run_id, key)
        cross join lateral (
            select t.ctid as place, t.run_id, t.key, t.worker from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key and t.kind = 'activity' limit 1
        ) as t
    ), forgotten as (
        delete from holdfast.tasks t using found f
        where t.ctid = f.place and f.worker is null
        returning t
    ), marked as (
        update holdfast.tasks t set cancelled = true from found f
        where t.ctid = f.place and f.worker is not null
    )
    select array_agg(array['worker/' || f.worker, f.run_id || ' ' || f.key])
            filter (where f.worker is not null),
        (select array_agg(g.t) from forgotten g)
    into v_notices, v_forgotten
    from found f;
    return v_notices || holdfast._tell_stopped(p_now, v_forgotten);
end $$;
