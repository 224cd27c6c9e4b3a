-- The end of runs.

-- End runs that have their last event in the log: record the end, delete all their tasks and
-- waiters. The arrays are parallel; runs in p_skipped are left alone. `notices` are (topic,
-- payload) for waiting clients; a payload is the run id and, if it fits into a notification, the
-- output; and for workers, if a run begins that waited for the end of a singleton. `children` are
-- the runs that have a parent, which must be told; null for none.
-- Locks: expects the turn rows locked; runs by run_id; waiters; as _free_singletons. Called by
-- commit, _end_each, _end_flows, _end_linear_steps and _end_last_step.
create or replace function holdfast._end_runs(
    p_now timestamptz, p_run_ids uuid[], p_statuses text[],
    p_outputs json[] default null, p_errors json[] default null, p_skipped uuid[] default '{}',
    out notices text[], out children uuid[]
)
language plpgsql
as $$
declare
    v_closed record;
begin
    if cardinality(p_run_ids) = 1 and cardinality(p_skipped) = 0 then
        select e.notices, e.children into notices, children
        from holdfast._end_run(p_now, p_run_ids[1], p_statuses[1], p_outputs[1], p_errors[1]) as e;
        return;
    end if;
    for v_try in 1 .. 2 loop
        with ended as materialized (
            select u.run_id, u.status, u.output, u.error, t.started_at
            from unnest(p_run_ids, p_statuses, p_outputs, p_errors)
                as u (run_id, status, output, error)
            cross join lateral (
                select t.started_at from holdfast.tasks t
                where t.run_id = u.run_id and t.key = '' limit 1
            ) as t
            where u.run_id <> all (p_skipped)
            order by u.run_id
        ), closed as (
            update holdfast.runs r
            set status = e.status, output = e.output, error = e.error,
                started_at = e.started_at, completed_at = p_now, delete_after = p_now + r.retention
            from ended e
            cross join lateral (
                select r.ctid from holdfast.runs r where r.run_id = e.run_id limit 1
            ) as f
            where r.ctid = f.ctid
            returning r.run_id, r.parent_run_id, r.name, case
                when r.status <> 'continued' then r.singleton_key end as singleton_key
        )
        select array_agg(c.run_id) as run_ids, count(*) = (select count(*) from ended) as is_whole,
            array_agg(c.run_id) filter (where c.parent_run_id is not null) as children,
            array_agg(c.run_id) filter (where c.singleton_key is not null) as holders,
            array_agg(c.name) filter (where c.singleton_key is not null) as names,
            array_agg(c.singleton_key) filter (where c.singleton_key is not null) as keys
        into v_closed
        from closed c;
        exit when v_closed.is_whole;
        -- The row of a run whose tags were set at this moment has another place: again, for all.
        perform holdfast._lock_runs(p_run_ids);
    end loop;
    children := v_closed.children;

    -- A statement later: who registered while the update waited for its lock is seen.
    with done as (
        -- By run: the rows of activities are not locked, and change their places.
        delete from holdfast.tasks t
        where t.run_id = any (array(select unnest(v_closed.run_ids)))
    ), told as (
        delete from holdfast.waiters w
        using unnest(p_run_ids, p_statuses, p_outputs) as u (run_id, status, output)
        cross join lateral (
            select w.ctid from holdfast.waiters w where w.run_id = u.run_id offset 0
        ) as f
        where w.ctid = f.ctid and u.run_id <> all (p_skipped)
        returning w.topic, w.run_id, case
            when u.status = 'completed' and octet_length(u.output::text) <= 7000
            then w.run_id || ' ' || u.output else w.run_id::text end as payload
    )
    select array_agg(array[t.topic, t.payload] order by t.topic, t.run_id)
    into notices from told t;
    if v_closed.holders is not null then
        notices := notices || holdfast._free_singletons(
            p_now, v_closed.holders, v_closed.names, v_closed.keys);
    end if;
end $$;

-- End a run as _end_runs does. It has short statements, without arrays: an idle worker ends one run
-- at a time. It finds the row by its id: the row has another ctid if the update has waited for it.
-- Locks: as _end_runs. Called by _end_runs.
create or replace function holdfast._end_run(
    p_now timestamptz, p_run_id uuid, p_status text, p_output json, p_error json,
    out notices text[], out children uuid[]
)
language plpgsql
as $$
declare
    v_run record;
begin
    with done as (
        delete from holdfast.tasks t where t.run_id = p_run_id returning t.key, t.started_at
    ), ended as materialized (
        select d.started_at from done d where d.key = ''
    )
    update holdfast.runs r
    set status = p_status, output = p_output, error = p_error, started_at = e.started_at,
        completed_at = p_now, delete_after = p_now + r.retention
    from ended e
    where r.run_id = p_run_id
    returning r.parent_run_id, r.name, case
        when r.status <> 'continued' then r.singleton_key end as singleton_key
    into v_run;
    children := case when v_run.parent_run_id is not null then array[p_run_id] end;

    -- A statement later: who registered while the update waited for its lock is seen.
    with told as (
        delete from holdfast.waiters w where w.run_id = p_run_id returning w.topic
    )
    select array_agg(array[t.topic, case
            when p_status = 'completed' and octet_length(p_output::text) <= 7000
            then p_run_id || ' ' || p_output else p_run_id::text end] order by t.topic)
    into notices from told t;
    if v_run.singleton_key is not null then
        notices := notices || holdfast._free_singletons(
            p_now, array[p_run_id], array[v_run.name], array[v_run.singleton_key]);
    end if;
end $$;

-- End runs without their code, each with this event; the arrays are parallel, and each run is given
-- once. Their waiters and parents are told, and so are workers that hold a turn or an activity of
-- them, and those of queues in which tasks wait for a place that a run held; the close policies of
-- their children apply. Runs that wait for answers of these are told. `ended` are those that had
-- not ended before, in no order.
-- Locks: expects the turn rows locked as by _lock_family; events and runs; as _count_ended and
-- _refuse_askers. Called by all that end runs from outside.
create or replace function holdfast._end_each(
    p_now timestamptz, p_run_ids uuid[], p_status text, p_event_type text,
    p_details json[] default null, p_errors json[] default null,
    out ended uuid[], out notices text[]
)
language plpgsql
as $$
declare
    v_holder_notices text[] := holdfast._holder_notices(p_run_ids, true)
        || holdfast._place_notices(p_run_ids);
    v_children uuid[];
begin
    ended := holdfast._append_each(p_now, p_run_ids, p_event_type, p_details);
    if cardinality(ended) = 0 then
        return;
    end if;
    perform holdfast._keep_started(ended);
    select e.notices || v_holder_notices, e.children into notices, v_children
    from holdfast._end_runs(p_now, p_run_ids,
        array_fill(p_status, array[cardinality(p_run_ids)]), null, p_errors,
        array(select unnest(p_run_ids) except select unnest(ended))) as e;
    perform holdfast._count_ended(p_now, ended, p_status);
    perform holdfast._keep_ends(p_now, ended);
    if v_children is not null then
        notices := notices || holdfast._tell_parents(p_now, v_children);
    end if;
    notices := notices || holdfast._close_children(p_now, ended);
    if p_status <> 'failed' then  -- a retry answers
        notices := notices || holdfast._refuse_askers(ended, p_status);
    end if;
end $$;

-- Return the id of the signal that tells of the failure of a call, as `answer_id` does in Python.
-- Called by _refuse_askers.
create or replace function holdfast._failed_answer_id(p_call_id text) returns text
language sql stable parallel safe
return case when octet_length(p_call_id) <= 1017 then 'failed/' || p_call_id
    else encode(sha256(convert_to('failed/' || p_call_id, 'UTF8')), 'hex') end;

-- Tell the runs that have asked these for something, by updates, and have no answer: the code that
-- would give it does not run again. Returns (topic, payload) notices, or null.
-- Locks: turn rows of the runs that asked, by run_id, after the others: if that leads to a
-- deadlock, the caller tries again. Called by _end_each.
create or replace function holdfast._refuse_askers(p_run_ids uuid[], p_status text) returns text[]
language plpgsql
as $$
declare
    v_told record;
begin
    select array_agg(e.run_id order by e.run_id, e.idx) as run_ids,
        array_agg(json_build_object(
            'run_id', e.asker,
            'signal_name', 'update-reply',
            'signal_id', holdfast._failed_answer_id(e.update_id),
            'input', json_build_object(
                'update_id', e.update_id,
                'error', json_build_object('kind', 'holdfast.errors.RunEnded', 'message',
                    format('run %s has ended (%s)', e.run_id, p_status)),
                'rejected', not e.is_begun)) order by e.run_id, e.idx) as details
    into v_told
    from (
        select u.run_id, e.idx, e.key as update_id, substr(e.reply_to, 5) as asker, e.is_begun
        from unnest(p_run_ids) as u (run_id)
        cross join lateral (  -- the log has no index by key: it is read once for all updates
            select e.idx, e.key, case e.event_type
                    when 'SignalReceived' then e.details ->> 'reply_to' end as reply_to,
                bool_or(e.event_type = 'UpdateAccepted') over together as is_begun,
                bool_or(e.event_type in ('UpdateCompleted', 'UpdateRejected')) over together
                    as is_answered
            from holdfast.events e
            where e.run_id = u.run_id and e.event_type in (
                'SignalReceived', 'UpdateAccepted', 'UpdateCompleted', 'UpdateRejected')
            window together as (partition by e.key)
        ) as e
        where not e.is_answered and e.reply_to like 'run/________-____-____-____-____________'
            and replace(e.reply_to, '-', '') ~ '^run/[0-9a-f]+$'
            and length(replace(e.reply_to, '-', '')) = 36
    ) as e;
    return (select s.notices from holdfast._send_signals(v_told.run_ids, v_told.details) as s);
end $$;
