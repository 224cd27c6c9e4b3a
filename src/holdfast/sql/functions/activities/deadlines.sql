-- Time limits of activities.

-- Fail activities that are past their deadline, the longest overdue first, even if a worker holds
-- them; these workers are notified. `next_due_at` is the next deadline, null for none. If a run's
-- turn row is locked, its activities are left for the next call.
-- Locks: turn rows by run_id, skipping locked ones, then task rows by (run_id, key), then events,
-- run by run. Called by maintenance, in any number of processes at once.
create or replace function holdfast.time_out_activities(
    p_limit int, out ended int, out next_due_at bigint, out notices text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_error json := '{"kind":"holdfast.errors.ActivityTimedOut","message":'
        '"the activity did not end within its schedule-to-close time"}';
    v_due record;
    v_run record;
begin
    ended := 0;
    with due as materialized (
        select t.run_id, t.key from holdfast.tasks t
        where t.deadline_at is not null and t.deadline_at <= v_now
        order by t.deadline_at limit p_limit
    ), turns as materialized (
        select r.run_id from (select distinct d.run_id from due d order by d.run_id) as r
        cross join lateral (
            select from holdfast.tasks t
            where t.run_id = r.run_id and t.key = '' for update skip locked
        ) as t
    )
    select array_agg(d.run_id) as run_ids, array_agg(d.key) as keys into v_due
    from due d join turns using (run_id);
    perform holdfast._lock_tasks(v_due.run_ids, v_due.keys);
    for v_run in
        with held as materialized (
            select t.* from unnest(v_due.run_ids, v_due.keys) as d (run_id, key)
            cross join lateral (
                select t.*, t.ctid as tid from holdfast.tasks t
                where t.run_id = d.run_id and t.key = d.key and t.deadline_at <= v_now limit 1
            ) as t
        ), deleted as (
            delete from holdfast.tasks t using held h where t.ctid = h.tid
        )
        select h.run_id, array_agg(h.key order by h.deadline_at, h.key) as keys,
            array_agg(e.details order by h.deadline_at, h.key) as details,
            array_agg(array['worker/' || h.worker, h.run_id || ' ' || h.key])
                filter (where h.worker is not null) as notices,
            bool_or(not h.cancelled or holdfast._is_waited_out(h.payload)) as is_awaited,
            count(*)::int as count
        from held h
        cross join lateral holdfast._attempt_event('recorded', h.handler, h.attempts,
            h.lease_no, h.worker, null, null, v_error, true, null) as e
        group by h.run_id
        order by h.run_id
    loop
        ended := ended + v_run.count;
        notices := notices || v_run.notices || holdfast._tell_ends(v_now, v_run.run_id,
            array_fill('ActivityFailed'::text, array[v_run.count]), v_run.keys, v_run.details,
            v_run.is_awaited);
    end loop;
    -- not min(): planned while no task has a deadline, it reads all entries of the index
    select holdfast._micros(t.deadline_at) into next_due_at
    from holdfast.tasks t where t.deadline_at is not null
    order by t.deadline_at limit 1;
end $$;
