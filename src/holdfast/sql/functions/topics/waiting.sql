-- Runs that wait for events. A subscription of a run has a signal of its own: events come to the
-- run as signals, so they are in its log from the moment of the subscription on, whether or not the
-- code waits at that moment.

-- Subscribe runs, as EventSubscribed asks for; the arrays are parallel. The key of the command is
-- the signal's name. What a run is subscribed to already stays as it is.
-- Locks: the subscriptions, by run_id and signal. Called by _carry_out.
create or replace function holdfast._subscribe_runs(
    p_now timestamptz, p_run_ids uuid[], p_keys text[], p_details json[]
) returns text[]
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    insert into holdfast.subscriptions (pattern, path, match, match_digest, match_key, kind, run_id,
        signal, created_at)
    select d.pattern, d.pattern || '.', d.match, coalesce(md5(d.match::text), ''),
        holdfast._match_key(d.match), 'run', u.run_id, u.signal, p_now
    from unnest(p_run_ids, p_keys, p_details) as u (run_id, signal, details)
    cross join lateral (
        select u.details ->> 'pattern' as pattern,
            nullif((u.details -> 'match')::jsonb, 'null') as match
    ) as d
    order by u.run_id, u.signal
    on conflict do nothing;
    return null;
end $$;

-- Let the runs that others continue as take over their subscriptions; p_details are those of
-- WorkflowContinuedAsNew. Locks: the subscriptions. Called by _continue_runs.
create or replace function holdfast._move_subscriptions(p_run_ids uuid[], p_details json[])
returns void
language plpgsql
as $$
begin
    update holdfast.subscriptions s set run_id = (u.details ->> 'run_id')::uuid
    from unnest(p_run_ids, p_details) as u (run_id, details)
    where s.run_id = u.run_id;
end $$;

-- Tell runs of an event: append it to their logs as a signal, and wake those that await it. The
-- arrays are parallel. A run that has continued as new is told by its newest run. An event is told
-- once to each subscription, however often it is published. What runs that have ended were
-- subscribed to is removed. `delivered` counts the signals, `notices` are (topic, payload).
-- Locks: turn rows, by run_id, then those of runs that these continued as; events. Subscriptions
-- of ended runs, skipping what others hold. Called by publish.
create or replace function holdfast._tell_waiting(
    p_now timestamptz, p_run_ids uuid[], p_signals text[], p_topic text, p_payload json,
    p_event_id text, out delivered int, out notices text[]
)
language plpgsql
as $$
declare
    v_body json := ('{"topic":' || to_json(p_topic) || ',"id":' || to_json(p_event_id)
        || ',"payload":' || p_payload || '}')::json;
    v_told text[];
    v_run record;
    v_last uuid;
    v_newest uuid;
    v_is_ended boolean := false;
begin
    perform holdfast._lock_turns(p_run_ids);
    -- At first one event for each run that no worker holds, in one statement.
    with written as (
        insert into holdfast.events (run_id, idx, event_type, key, details, at)
        select u.run_id, e.idx + 1, 'SignalReceived', p_event_id || ' ' || u.signal,
            holdfast._signal(u.signal, v_body, false, null), p_now
        from (
            select u.run_id, min(u.signal) as signal
            from unnest(p_run_ids, p_signals) as u (run_id, signal) group by u.run_id
        ) as u
        cross join lateral (
            select t.worker from holdfast.tasks t
            where t.run_id = u.run_id and t.key = '' limit 1
        ) as t
        cross join lateral (
            select e.idx, e.event_type from holdfast.events e
            where e.run_id = u.run_id order by e.idx desc limit 1
        ) as e
        where t.worker is null and not holdfast._is_terminal(e.event_type)
            and not holdfast._has_signal(u.run_id, p_event_id || ' ' || u.signal)
        order by u.run_id
        on conflict do nothing
        returning run_id, key
    )
    select array_agg(w.run_id || ' ' || w.key) into v_told from written w;
    delivered := coalesce(cardinality(v_told), 0);

    -- Then the others, one by one.
    for v_run in
        select u.run_id, u.signal, p_event_id || ' ' || u.signal as key
        from unnest(p_run_ids, p_signals) as u (run_id, signal)
        where u.run_id || ' ' || p_event_id || ' ' || u.signal not in (select unnest(v_told))
        order by u.run_id, u.signal
    loop
        if holdfast._append(p_now, v_run.run_id, 'SignalReceived',
            holdfast._signal(v_run.signal, v_body, false, null), v_run.key) is not null
        then
            delivered := delivered + 1;
        elsif not holdfast._has_signal(v_run.run_id, v_run.key) then
            v_is_ended := true;
            v_newest := v_run.run_id;
            loop  -- it has continued meanwhile, and that one may continue before it is locked
                v_last := v_newest;
                v_newest := (select n.newest from holdfast.newest_runs(array[v_last]) as n);
                exit when v_newest is null or v_newest = v_last;
                perform holdfast._lock_turns(array[v_newest]);
                if holdfast._append(p_now, v_newest, 'SignalReceived',
                    holdfast._signal(v_run.signal, v_body, false, null), v_run.key) is not null
                then
                    delivered := delivered + 1;
                    notices := notices || holdfast._wake(p_now, v_newest, v_run.signal);
                    exit;
                end if;
                exit when holdfast._has_signal(v_newest, v_run.key);
            end loop;
        end if;
    end loop;
    notices := notices || holdfast._wake_awaiting(p_now, p_run_ids, p_signals);
    if v_is_ended then
        perform holdfast._forget_subscriptions(p_run_ids);
    end if;
end $$;

-- Wake runs that await one of these, and report that their queues have work, or tell the workers
-- that hold them; the arrays are parallel. Returns (topic, payload) notices.
-- Locks: expects the turn rows locked. Called by _tell_waiting.
create or replace function holdfast._wake_awaiting(
    p_now timestamptz, p_run_ids uuid[], p_signals text[]
) returns text[]
language plpgsql
as $$
declare
    v_queues text[];
begin
    with woken as (
        update holdfast.tasks t set visible_at = least(t.visible_at, p_now)
        from unnest(p_run_ids, p_signals) as u (run_id, signal)
        cross join lateral (
            select t.ctid, t.worker, t.awaiting from holdfast.tasks t
            where t.run_id = u.run_id and t.key = '' limit 1
        ) as f
        where t.ctid = f.ctid and f.worker is null and u.signal = any (f.awaiting)
        returning t.queue
    )
    select array_agg(distinct array['work', w.queue]) into v_queues from woken w;
    return v_queues || holdfast._holder_notices(
        array(select distinct u.run_id from unnest(p_run_ids) as u (run_id)));
end $$;

-- Remove the subscriptions of those of these runs that have ended; with null, of any. Returns how
-- many.
-- Locks: the subscriptions, skipping what others hold. Called by _tell_waiting and sweep_topics.
create or replace function holdfast._forget_subscriptions(
    p_run_ids uuid[], p_limit int default 1000
) returns int
language plpgsql
set plan_cache_mode = force_custom_plan
as $$
declare
    v_gone int;
begin
    delete from holdfast.subscriptions s
    where s.subscription_id in (
        select o.subscription_id from holdfast.subscriptions o
        where o.run_id is not null and (p_run_ids is null or o.run_id = any (p_run_ids))
            and not exists (
                select from holdfast.tasks t where t.run_id = o.run_id and t.key = '')
        order by o.subscription_id limit p_limit
        for update skip locked)
        and not exists (select from holdfast.tasks t where t.run_id = s.run_id and t.key = '');
    get diagnostics v_gone = row_count;
    return v_gone;
end $$;
