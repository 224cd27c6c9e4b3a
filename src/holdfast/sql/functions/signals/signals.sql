-- Signals, and updates: signals that are answered.

-- Append SignalReceived to each run's log, and wake the run if it awaits that signal. If the log
-- has the signal id already, it is a duplicate, also after the run's end. An update is a signal
-- that is answered: p_reply_tos are the topics that are told of the answers. With p_tell, the
-- schema's name, the call sends its notices itself if it can. p_traces are the
-- spans of the senders, as a `traceparent` has them.
-- Refuses values that are not allowed (22004, 22023).
-- Locks: turn rows, then events, by run_id. Called by clients, and by _send_signals.
create or replace function holdfast.signal_runs(
    p_run_ids uuid[], p_names text[], p_payloads json[], p_signal_ids text[],
    p_updates boolean[] default null, p_reply_tos text[] default null, p_tell text default null,
    p_traces text[] default null,
    out outcomes text[], out notices text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
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
            p_run_ids, p_names, p_payloads, p_signal_ids, p_updates, p_reply_tos, p_traces)
            with ordinality
            as u (run_id, name, payload, signal_id, is_update, reply_to, trace, place)
        order by u.run_id, u.place
    loop
        v_idx := holdfast._append(v_now, v_signal.run_id, 'SignalReceived',
            holdfast._signal(
                v_signal.name, v_signal.payload, v_signal.is_update, v_signal.reply_to,
                v_signal.trace),
            v_signal.signal_id);
        outcomes[v_signal.place] := case
            when v_idx is not null then 'delivered'
            when holdfast._has_signal(v_signal.run_id, v_signal.signal_id) then 'duplicate'
            else holdfast._absence(v_signal.run_id) end;
        if v_idx is not null then
            notices := notices || holdfast._wake(v_now, v_signal.run_id,
                case when v_signal.is_update then 'update:' else '' end || v_signal.name);
            if holdfast._refers(v_signal.payload) then  -- to an object of the run before, say
                perform holdfast._use_payloads(v_signal.run_id, array[v_signal.payload]);
            end if;
        end if;
    end loop;
    notices := holdfast._tell(p_tell, notices);
end $$;

-- Return true if every value of a signal is allowed. Called by signal_runs and _check_signals.
create or replace function holdfast._is_signal(
    p_run_id uuid, p_name text, p_payload json, p_signal_id text, p_reply_to text
) returns boolean
language sql stable parallel safe
return (p_run_id is not null and holdfast._is_name(p_name) and holdfast._is_legible(p_payload)
    and (p_signal_id is null or holdfast._is_id(p_signal_id))
    and (p_reply_to is null or holdfast._is_id(p_reply_to))) is true;

-- Refuse signals that have a value that _is_signal does not allow; the parameters are those of
-- signal_runs. Called by signal_runs.
create or replace function holdfast._check_signals(
    p_run_ids uuid[], p_names text[], p_payloads json[], p_signal_ids text[], p_reply_tos text[]
) returns void
language plpgsql immutable
as $$
declare
    v_signal record;
begin
    perform holdfast._check_given('the run ids', p_run_ids is not null);
    select u.* into v_signal
    from unnest(p_run_ids, p_names, p_payloads, p_signal_ids, p_reply_tos)
        as u (run_id, name, payload, signal_id, reply_to)
    where not holdfast._is_signal(u.run_id, u.name, u.payload, u.signal_id, u.reply_to)
    limit 1;
    if found then
        perform holdfast._check_given('a run id', v_signal.run_id is not null);
        perform holdfast._check_name('a signal', v_signal.name);
        perform holdfast._check_json('the payload', v_signal.payload);
        perform holdfast._check_id('a signal id', v_signal.signal_id);
        perform holdfast._check_id('a topic', v_signal.reply_to);
    end if;
end $$;

-- Return the details of a SignalReceived. Called by signal_runs, _continue_runs and
-- _tell_waiting.
create or replace function holdfast._signal(
    p_name text, p_payload json, p_is_update boolean, p_reply_to text, p_trace text default null
) returns json
language sql stable
return ('{"signal_name":' || to_json(p_name) || ',"input":' || p_payload || case
    when p_is_update then ',"update":true,"reply_to":'
        || coalesce(to_json(p_reply_to)::text, 'null') else '' end
    || coalesce(',"trace":' || to_json(p_trace), '') || '}')::json;

-- Send the signals of SignalSent, which p_run_ids have written. If the receiver continued as new,
-- its newest run gets the signal; if it is the parent of the sender, and was retried, the retry; if
-- this database is a shard that does not have it, the shard that does. `notices` are (topic,
-- payload); `undelivered` is that of commit.
-- Locks: as signal_runs; then the turn rows of runs that others have continued as meanwhile. Called
-- by _carry_out, _refuse_askers and _hear_children.
create or replace function holdfast._send_signals(
    p_run_ids uuid[], p_details json[], out notices text[], out undelivered json
)
language plpgsql
as $$
declare
    v_sent record;
    v_again record;
    v_run_ids uuid[];
    v_outcomes text[];
begin
    select array_agg(coalesce(n.newest, u.target) order by u.place) as run_ids,
        array_agg(u.details ->> 'signal_name' order by u.place) as names,
        array_agg(coalesce(u.details -> 'input', 'null') order by u.place) as payloads,
        array_agg(u.details ->> 'signal_id' order by u.place) as signal_ids,
        array_agg(u.run_id order by u.place) as senders
    into v_sent
    from (
        select u.*, holdfast._receiver(u.run_id, (u.details ->> 'run_id')::uuid) as target
        from unnest(p_run_ids, p_details) with ordinality as u (run_id, details, place)
    ) as u
    left join lateral holdfast.newest_runs(array[u.target]) as n on true;
    if v_sent.run_ids is not null then
        v_run_ids := v_sent.run_ids;
        select s.outcomes, s.notices into v_outcomes, notices
        from holdfast.signal_runs(
            v_run_ids, v_sent.names, v_sent.payloads, v_sent.signal_ids) as s;
        while 'ended' = any (v_outcomes) loop  -- one may have continued before it was locked
            select array_agg(n.newest order by u.place) as run_ids,
                array_agg(u.name order by u.place) as names,
                array_agg(u.payload order by u.place) as payloads,
                array_agg(u.signal_id order by u.place) as signal_ids,
                array_agg(u.place::int order by u.place) as places
            into v_again
            from unnest(v_run_ids, v_sent.names, v_sent.payloads, v_sent.signal_ids, v_outcomes)
                with ordinality as u (run_id, name, payload, signal_id, outcome, place)
            cross join lateral holdfast.newest_runs(array[u.run_id]) as n
            where u.outcome = 'ended' and n.newest <> u.run_id;
            exit when v_again.places is null;
            select _send_signals.notices || s.notices,
                array(
                    select coalesce(a.outcome, o.outcome)
                    from unnest(v_outcomes) with ordinality as o (outcome, place)
                    left join unnest(s.outcomes, v_again.places) as a (outcome, place)
                        using (place)
                    order by o.place)
            into notices, v_outcomes
            from holdfast.signal_runs(
                v_again.run_ids, v_again.names, v_again.payloads, v_again.signal_ids) as s;
            v_run_ids := array(
                select coalesce(a.run_id, r.run_id)
                from unnest(v_run_ids) with ordinality as r (run_id, place)
                left join unnest(v_again.run_ids, v_again.places) as a (run_id, place)
                    using (place)
                order by r.place);
        end loop;
        if 'missing' = any (v_outcomes) and exists (select from holdfast.shard s) then
            perform holdfast._forward_signals(
                array_agg(u.run_id order by u.place), array_agg(u.name order by u.place),
                array_agg(u.payload order by u.place), array_agg(u.signal_id order by u.place))
            from unnest(v_run_ids, v_sent.names, v_sent.payloads, v_sent.signal_ids, v_outcomes)
                with ordinality as u (run_id, name, payload, signal_id, outcome, place)
            where u.outcome = 'missing';
            v_outcomes := array_replace(v_outcomes, 'missing', 'forwarded');
            notices := notices || array[array['forwards', '']];
        end if;
        if v_outcomes && array['ended', 'missing'] then
            select json_agg(json_build_array(u.sender, u.run_id, u.name, u.outcome)
                order by u.place)
            into undelivered
            from unnest(v_sent.senders, v_run_ids, v_sent.names, v_outcomes)
                with ordinality as u (sender, run_id, name, outcome, place)
            where u.outcome in ('ended', 'missing');
        end if;
    end if;
end $$;
