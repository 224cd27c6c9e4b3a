-- Wake runs, or tell the workers that hold them.

-- Wake a run that awaits this and report that its queue has work, or tell the worker that holds it.
-- ':end' is the end of an activity or a child, or a decision. Returns a (topic, payload) notice, or
-- null. Locks: expects the turn row locked. Called by all that append a signal or such an end.
create or replace function holdfast._wake(p_now timestamptz, p_run_id uuid, p_topic text)
returns text[]
language plpgsql
as $$
declare
    v_turn record;
begin
    select t.worker, t.queue, t.awaiting into v_turn
    from holdfast.tasks t
    where t.run_id = p_run_id and t.key = '';
    if v_turn.worker is not null then
        return array[array['worker/' || v_turn.worker, p_run_id::text]];
    end if;
    if p_topic = any (v_turn.awaiting)
        or (p_topic like 'update:%' and 'update:' = any (v_turn.awaiting))  -- one of any name
    then
        update holdfast.tasks t set visible_at = least(t.visible_at, p_now)
        where t.run_id = p_run_id and t.key = '';
        return array[array['work', v_turn.queue]];
    end if;
    return null;
end $$;

-- Wake runs, whatever they await, or tell the workers that hold them. Returns (topic, payload)
-- notices. Locks: expects the turn rows locked. Called by _cancel and resume_runs.
create or replace function holdfast._wake_each(p_now timestamptz, p_run_ids uuid[])
returns text[]
language plpgsql
as $$
declare
    v_queues text[];
begin
    with woken as (
        update holdfast.tasks t set visible_at = least(t.visible_at, p_now)
        from unnest(p_run_ids) as u (run_id)
        cross join lateral (
            select t.ctid, t.worker from holdfast.tasks t
            where t.run_id = u.run_id and t.key = '' limit 1
        ) as f
        where t.ctid = f.ctid and f.worker is null
        returning t.queue
    )
    select array_agg(distinct array['work', w.queue]) into v_queues from woken w;
    return v_queues || holdfast._holder_notices(p_run_ids);
end $$;

-- Return the (topic, payload) notices for workers that hold something of runs: for a turn the run's
-- id, for an activity RUN KEY. Locks nothing. Called by _wake_each, _end_each,
-- pause_runs and _wake_awaiting.
create or replace function holdfast._holder_notices(
    p_run_ids uuid[], p_activities boolean default false
) returns text[]
language plpgsql stable
as $$
begin
    return array_agg(
        array['worker/' || t.worker, concat_ws(' ', t.run_id, nullif(t.key, ''))]
        order by t.run_id, t.key)
    from unnest(p_run_ids) as u (run_id)
    cross join lateral (
        select t.run_id, t.key, t.worker from holdfast.tasks t
        where t.run_id = u.run_id and (t.key = '' or p_activities) offset 0
    ) as t
    where t.worker is not null;
end $$;
