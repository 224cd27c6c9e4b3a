-- Change runs from outside: signal, cancel, terminate, time out. Each locks the turn rows of its
-- runs first, by run_id: that keeps other guests away, and suspends and ends; only checkpoints
-- race, and the appends are tried again. A free task is woken, a leased one never touched: its
-- holder is told.
--
-- Outcomes keep the order given: 'delivered', 'duplicate', 'ended', 'missing'. Notices are
-- (topic, payload).

-- Lock the turn rows of runs, by run_id. Called by commit and by all that change runs from outside.
create or replace function holdfast._lock_turns(p_run_ids uuid[]) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    perform from (
        select u.run_id from unnest(p_run_ids) as u (run_id) order by u.run_id
    ) as u
    cross join lateral (
        select from holdfast.tasks t where t.run_id = u.run_id and t.key = '' for update
    ) as t;
end $$;

-- Make a run due now and say that its queue has work, or tell the worker that holds it. With a
-- signal's name only a run that awaits it is woken. Returns a (topic, payload) notice, or null.
-- Locks: expects the turn row locked. Called by signal_runs and cancel_runs.
create or replace function holdfast._wake(
    p_now timestamptz, p_run_id uuid, p_signal text default null
) returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
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
    if p_signal is null or p_signal = any (v_turn.awaiting) then
        update holdfast.tasks t set visible_at = least(t.visible_at, p_now)
        where t.run_id = p_run_id and t.key = '';
        return array[array['work', v_turn.queue]];
    end if;
    return null;
end $$;

-- Say why nothing more can be appended to a run's log. Locks nothing. Called by all that change
-- runs from outside.
create or replace function holdfast._absence(p_run_id uuid) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return case when exists (select from holdfast.runs r where r.run_id = p_run_id)
        then 'ended' else 'missing' end;
end $$;

-- Append SignalReceived to each run's log, and wake the run where it awaits that signal. A
-- signal id that the run's log has already is a duplicate, also after the run's end.
-- Refuses malformed JSON (22P02). Locks: turn rows, then events, by run_id. Called by clients.
create or replace function holdfast.signal_runs(
    p_run_ids uuid[], p_names text[], p_payloads json[], p_signal_ids text[],
    out outcomes text[], out notices text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := holdfast.now();
    v_signal record;
    v_idx int;
begin
    perform holdfast._lock_turns(p_run_ids);
    outcomes := array_fill(null::text, array[cardinality(p_run_ids)]);
    for v_signal in
        select u.* from unnest(p_run_ids, p_names, p_payloads, p_signal_ids) with ordinality
            as u (run_id, name, payload, signal_id, place)
        order by u.run_id, u.place
    loop
        v_idx := holdfast._append(v_now, v_signal.run_id, 'SignalReceived',
            ('{"signal_name":' || to_json(v_signal.name)
                || ',"input":' || v_signal.payload || '}')::json,
            v_signal.signal_id);
        outcomes[v_signal.place] := case
            when v_idx is not null then 'delivered'
            when holdfast._has_signal(v_signal.run_id, v_signal.signal_id) then 'duplicate'
            else holdfast._absence(v_signal.run_id) end;
        if v_idx is not null then
            notices := notices || holdfast._wake(v_now, v_signal.run_id, v_signal.name);
        end if;
    end loop;
end $$;

-- Ask runs to stop: WorkflowCancelRequested, once; the run wakes and its code cleans up. One
-- that no worker ever had has nothing to clean up and ends at once. A second request is a
-- duplicate. Locks: turn rows, then events and runs, by run_id. Called by clients.
create or replace function holdfast.cancel_runs(
    p_run_ids uuid[], p_reason text default null, out outcomes text[], out notices text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := holdfast.now();
    v_run record;
begin
    perform holdfast._lock_turns(p_run_ids);
    outcomes := array_fill(null::text, array[cardinality(p_run_ids)]);
    for v_run in
        select u.run_id, u.place
        from unnest(p_run_ids) with ordinality as u (run_id, place)
        order by u.run_id, u.place
    loop
        if holdfast._is_cancelling(v_run.run_id) then
            outcomes[v_run.place] := 'duplicate';
        elsif holdfast._append(v_now, v_run.run_id, 'WorkflowCancelRequested',
                holdfast._reason(p_reason)) is null then
            outcomes[v_run.place] := holdfast._absence(v_run.run_id);
        else
            outcomes[v_run.place] := 'delivered';
            notices := notices || case when holdfast._is_untouched(v_run.run_id)
                then holdfast._end_run(
                    v_now, v_run.run_id, 'cancelled', 'WorkflowCanceled', null)
                else holdfast._wake(v_now, v_run.run_id) end;
        end if;
    end loop;
end $$;

-- Say whether a run that goes on was asked to stop. Locks nothing. Called by cancel_runs.
create or replace function holdfast._is_cancelling(p_run_id uuid) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    return exists (
        select from holdfast.events e
        where e.run_id = p_run_id and e.event_type = 'WorkflowCancelRequested'
    ) and exists (select from holdfast.tasks t where t.run_id = p_run_id and t.key = '');
end $$;

-- Say whether no worker ever had a run. Locks nothing. Called by cancel_runs.
create or replace function holdfast._is_untouched(p_run_id uuid) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    return t.lease_no = 0 from holdfast.tasks t where t.run_id = p_run_id and t.key = '';
end $$;

-- Write why somebody ends a run. Called by cancel_runs and terminate_runs.
create or replace function holdfast._reason(p_reason text) returns json
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select ('{"reason":' || coalesce(to_json(p_reason)::text, 'null') || '}')::json
$$;

-- End a run without its code. Its waiters are told, and who holds it, so that it lets go; null
-- where it has ended already. Locks: expects the turn row locked; the event, then as _end_runs.
-- Called by cancel_runs, terminate_runs and time_out_runs.
create or replace function holdfast._end_run(
    p_now timestamptz, p_run_id uuid, p_status text, p_event_type text, p_details json
) returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_holder text;
    v_notices text[];
begin
    if holdfast._append(p_now, p_run_id, p_event_type, p_details) is null then
        return null;
    end if;
    select t.worker into v_holder
    from holdfast.tasks t where t.run_id = p_run_id and t.key = '';
    v_notices := coalesce(
        holdfast._end_runs(p_now, array[p_run_id], array[p_status]), '{}');
    if v_holder is not null then
        v_notices := v_notices || array[array['worker/' || v_holder, p_run_id::text]];
    end if;
    return v_notices;
end $$;

-- End runs at once, without their code: WorkflowTerminated. Locks: turn rows, then events and
-- runs, by run_id. Called by clients.
create or replace function holdfast.terminate_runs(
    p_run_ids uuid[], p_reason text default null, out outcomes text[], out notices text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := holdfast.now();
    v_notices text[];
    v_run record;
begin
    perform holdfast._lock_turns(p_run_ids);
    outcomes := array_fill(null::text, array[cardinality(p_run_ids)]);
    for v_run in
        select u.run_id, u.place
        from unnest(p_run_ids) with ordinality as u (run_id, place)
        order by u.run_id, u.place
    loop
        v_notices := holdfast._end_run(v_now, v_run.run_id, 'terminated', 'WorkflowTerminated',
            holdfast._reason(p_reason));
        notices := notices || v_notices;
        outcomes[v_run.place] := case
            when v_notices is null then holdfast._absence(v_run.run_id) else 'delivered' end;
    end loop;
end $$;

-- End runs past their deadline, the longest overdue first: WorkflowTimedOut. `next_due_at` is
-- the next deadline, null for none. A run whose turn row is locked is left for the next call.
-- Locks: turn rows, skipping locked ones, then events and runs, by run_id. Called by maintenance,
-- in any number of processes at once.
create or replace function holdfast.time_out_runs(
    p_limit int, out ended int, out next_due_at bigint, out notices text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_now timestamptz := holdfast.now();
    v_notices text[];
    v_run_id uuid;
    v_run_ids uuid[];
begin
    ended := 0;
    -- All rows are locked before the first append.
    select array_agg(t.run_id) into v_run_ids
    from (
        select r.run_id from (
            select r.run_id from holdfast.runs r
            where r.deadline_at is not null and r.status = 'running' and r.deadline_at <= v_now
            order by r.deadline_at limit p_limit
        ) as r
        order by r.run_id
    ) as r
    cross join lateral (
        select t.run_id from holdfast.tasks t
        where t.run_id = r.run_id and t.key = '' for update skip locked
    ) as t;
    foreach v_run_id in array coalesce(v_run_ids, '{}')
    loop
        v_notices := holdfast._end_run(v_now, v_run_id, 'timed_out', 'WorkflowTimedOut', null);
        ended := ended + (v_notices is not null)::int;
        notices := notices || v_notices;
    end loop;
    select holdfast._micros(min(r.deadline_at)) into next_due_at
    from holdfast.runs r
    where r.deadline_at is not null and r.status = 'running';
end $$;
