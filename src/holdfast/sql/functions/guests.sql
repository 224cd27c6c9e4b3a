-- Change runs from outside: signal, cancel, terminate, time out. Each locks the turn rows of its
-- runs first, by run_id: that keeps other guests away, and suspends and ends; only checkpoints
-- race, and the appends are tried again. A free task is woken, a leased one never touched: its
-- holder is told. What ends runs locks the rows of their parents and children as well; all events
-- of a call are in the logs before the first parent is told.
--
-- Outcomes keep the order given: 'delivered', 'duplicate', 'ended', 'missing'. Notices are
-- (topic, payload).

-- Say why nothing more can be appended to a run's log. Locks nothing. Called by all that change
-- runs from outside.
create or replace function holdfast._absence(p_run_id uuid) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return case when holdfast._has_run(p_run_id) then 'ended' else 'missing' end;
end $$;

-- Say whether a run exists. Asks for its row: an index that has the id as its last column would
-- do for the id alone. Locks nothing. Called by _absence and fork_run.
create or replace function holdfast._has_run(p_run_id uuid) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_row tid;
begin
    select r.ctid into v_row from holdfast.runs r where r.run_id = p_run_id;
    return found;
end $$;

-- Say what became of runs that were to be changed: the first mention of one in p_changed was
-- 'delivered'; another that goes on was so before and is a 'duplicate'. Locks nothing. Called by
-- all that change runs from outside and take many of them at once.
create or replace function holdfast._outcomes(p_run_ids uuid[], p_changed uuid[])
returns text[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    return array(
        select case
            when c.run_id is not null and u.mention = 1 then 'delivered'
            when t.ctid is not null then 'duplicate'
            else holdfast._absence(u.run_id) end
        from (
            select u.*, row_number() over (partition by u.run_id order by u.place) as mention
            from unnest(p_run_ids) with ordinality as u (run_id, place)
        ) as u
        left join unnest(p_changed) as c (run_id) on c.run_id = u.run_id
        left join lateral (
            select t.ctid from holdfast.tasks t where t.run_id = u.run_id and t.key = '' limit 1
        ) as t on true
        order by u.place);
end $$;

-- Append SignalReceived to each run's log, and wake the run where it awaits that signal. A
-- signal id that the run's log has already is a duplicate, also after the run's end. An update is
-- a signal that is answered: p_reply_tos are the topics that hear of the answers.
-- With p_tell, the schema's name, the call sends its notices itself where it can.
-- Refuses values that are not allowed (22004, 22023). Locks: turn rows, then events, by run_id.
-- Called by clients, and by _send_signals.
create or replace function holdfast.signal_runs(
    p_run_ids uuid[], p_names text[], p_payloads json[], p_signal_ids text[],
    p_updates boolean[] default null, p_reply_tos text[] default null, p_tell text default null,
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
    if (cardinality(p_run_ids) = 1 and cardinality(p_names) = 1) is not true
        or not holdfast._is_signal(
            p_run_ids[1], p_names[1], p_payloads[1], p_signal_ids[1], p_reply_tos[1])
    then
        perform holdfast._check_signals(p_run_ids, p_names, p_payloads, p_signal_ids, p_reply_tos);
    end if;
    perform holdfast._lock_turns(p_run_ids);
    outcomes := array_fill(null::text, array[cardinality(p_run_ids)]);
    for v_signal in
        select u.* from unnest(
            p_run_ids, p_names, p_payloads, p_signal_ids, p_updates, p_reply_tos) with ordinality
            as u (run_id, name, payload, signal_id, is_update, reply_to, place)
        order by u.run_id, u.place
    loop
        v_idx := holdfast._append(v_now, v_signal.run_id, 'SignalReceived',
            holdfast._signal(
                v_signal.name, v_signal.payload, v_signal.is_update, v_signal.reply_to),
            v_signal.signal_id);
        outcomes[v_signal.place] := case
            when v_idx is not null then 'delivered'
            when holdfast._has_signal(v_signal.run_id, v_signal.signal_id) then 'duplicate'
            else holdfast._absence(v_signal.run_id) end;
        if v_idx is not null then
            notices := notices || holdfast._wake(v_now, v_signal.run_id,
                case when v_signal.is_update then 'update:' else '' end || v_signal.name);
        end if;
    end loop;
    notices := holdfast._tell(p_tell, notices);
end $$;

-- Write what a log says of a signal. Called by signal_runs and _continue_runs.
create or replace function holdfast._signal(
    p_name text, p_payload json, p_is_update boolean, p_reply_to text
) returns json
language sql stable
return ('{"signal_name":' || to_json(p_name) || ',"input":' || p_payload || case
    when p_is_update then ',"update":true,"reply_to":'
        || coalesce(to_json(p_reply_to)::text, 'null') else '' end || '}')::json;

-- Ask runs to stop: WorkflowCancelRequested, once; the run wakes and its code cleans up. One
-- that no worker ever had, nor its origin, has nothing to clean up and ends at once. A second
-- request is a duplicate. Refuses nulls among the ids (22004) and a reason that is too long
-- (22023).
-- Locks: turn rows as _lock_family, then events and runs, by run_id. Called by clients.
create or replace function holdfast.cancel_runs(
    p_run_ids uuid[], p_reason text default null, out outcomes text[], out notices text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_asked uuid[];
begin
    perform holdfast._check_change(p_run_ids, p_reason);
    perform holdfast._lock_turns(p_run_ids || holdfast._parents(p_run_ids));
    select c.asked, c.notices into v_asked, notices
    from holdfast._cancel(holdfast.now(), p_run_ids, array_fill(
        holdfast._reason(p_reason), array[cardinality(p_run_ids)])) as c;
    outcomes := holdfast._outcomes(p_run_ids, v_asked);
end $$;

-- Ask runs to stop that were not asked before; p_details are those of the requests. `asked` are
-- these runs, each once, in no order.
-- Locks: expects the turn rows of the runs and of their parents locked; events and runs. Called by
-- cancel_runs, _cancel_children and _close_children.
create or replace function holdfast._cancel(
    p_now timestamptz, p_run_ids uuid[], p_details json[], out asked uuid[], out notices text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_details json[];
    v_untouched uuid[];
begin
    select array_agg(u.run_id), array_agg(u.details),
        array_agg(u.run_id) filter (where u.started_at is null)
    into asked, v_details, v_untouched
    from (
        select distinct on (u.run_id) u.run_id, u.details, t.started_at
        from unnest(p_run_ids, p_details) with ordinality as u (run_id, details, place)
        cross join lateral (
            select t.started_at from holdfast.tasks t
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
    if v_untouched is not null then
        select e.notices into notices
        from holdfast._end_each(p_now, v_untouched, 'cancelled', 'WorkflowCanceled') as e;
    end if;
    notices := notices || holdfast._wake_each(p_now, asked);
end $$;

-- Write why somebody ends, stops or pauses a run.
create or replace function holdfast._reason(p_reason text) returns json
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select ('{"reason":' || coalesce(to_json(p_reason)::text, 'null') || '}')::json
$$;

-- End runs at once, without their code: WorkflowTerminated. Refuses what cancel_runs does.
-- Locks: turn rows as _lock_family, then events and runs, by run_id. Called by clients.
create or replace function holdfast.terminate_runs(
    p_run_ids uuid[], p_reason text default null, out outcomes text[], out notices text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_run_ids uuid[] := array(select distinct unnest(p_run_ids));
    v_ended uuid[];
begin
    perform holdfast._check_change(p_run_ids, p_reason);
    perform holdfast._lock_family(v_run_ids || holdfast._parents(v_run_ids), v_run_ids);
    select e.ended, e.notices into v_ended, notices
    from holdfast._end_each(holdfast.now(), v_run_ids, 'terminated', 'WorkflowTerminated',
        array_fill(holdfast._reason(p_reason), array[cardinality(v_run_ids)])) as e;
    outcomes := holdfast._outcomes(p_run_ids, v_ended);
end $$;

-- End runs past their deadline, the longest overdue first: WorkflowTimedOut. `next_due_at` is
-- the next deadline, null for none. A run is left for the next call if another transaction has its
-- turn row or its parent's.
-- Locks: turn rows as _lock_families, then events and runs, by run_id. Called by maintenance, in
-- any number of processes at once.
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
        select cardinality(e.ended), e.notices into ended, notices
        from holdfast._end_each(v_now, holdfast._lock_families(v_run_ids),
            'timed_out', 'WorkflowTimedOut') as e;
    end if;
    select holdfast._micros(min(r.deadline_at)) into next_due_at
    from holdfast.runs r
    where r.deadline_at is not null and r.status = 'running';
end $$;
