-- Publishing: one call reaches every subscription that fits, in the caller's transaction.

-- Publish an event to a topic. In this transaction, every workflow that is subscribed gets a run,
-- and every run that waits is told. If the transaction is rolled back, nothing of it has happened.
--
-- With an event id, publishing the same event again within an hour does nothing, and `is_new` is
-- false; another publish of the id waits for the first one's transaction. A run's key follows from
-- the event and the subscription, so that an event starts no run twice, also after the hour.
-- `workflows`, `runs`, `queues` and `urls` say how many targets of each kind the event has reached;
-- `refused`, how many starts a rule of their workflow refused. With p_tell, the schema's name, the
-- call sends its notices, (topic, payload), itself if it can. A shard passes the event on to the
-- others, but not with p_forwarded: then it comes from one of them.
--
-- Refuses values that are not allowed (22004, 22023).
-- Locks: the event's id; turn rows of runs that wait, by run_id; events, by run_id; then as
-- start_runs. Called by clients; in any transaction.
create or replace function holdfast.publish(
    p_topic text, p_payload json default 'null', p_event_id text default null,
    p_tell text default null, p_forwarded boolean default false,
    out event_id text, out is_new boolean, out workflows int, out runs int, out queues int,
    out urls int, out refused int, out notices text[]
)
language plpgsql
set enable_bitmapscan = off
as $$
#variable_conflict use_variable
declare
    v_now timestamptz := holdfast.now();
    v_found record;
    v_told text[];
begin
    perform holdfast._check_topic(p_topic);
    perform holdfast._check_json('the payload', p_payload);
    if octet_length(p_event_id) not between 1 and 255 then
        raise invalid_parameter_value using message = format(
            'an event id takes 1 to 255 bytes, not %s', octet_length(p_event_id));
    end if;
    event_id := coalesce(p_event_id, gen_random_uuid()::text);
    is_new := true;
    workflows := 0;
    runs := 0;
    queues := 0;
    urls := 0;
    refused := 0;
    if p_event_id is not null then
        insert into holdfast.published_events as e (event_id, expires_at)
        values (p_event_id, v_now + interval '1 hour')
        on conflict on constraint published_events_pkey do update
        set expires_at = excluded.expires_at where e.expires_at <= v_now;
        is_new := found;
        if not is_new then
            return;
        end if;
    end if;
    select array_agg(s.subscription_id order by s.subscription_id)
            filter (where s.kind = 'workflow') as workflows,
        array_agg(s.subscription_id) filter (where s.kind = 'url') as urls,
        array_agg(s.target) filter (where s.kind = 'queue') as queues,
        array_agg(s.run_id order by s.run_id, s.signal) filter (where s.kind = 'run') as run_ids,
        array_agg(s.signal order by s.run_id, s.signal) filter (where s.kind = 'run') as signals
    into v_found
    from holdfast._reached(p_topic, p_payload) as r
    cross join lateral (
        select s.* from holdfast.subscriptions s
        where s.subscription_id = r.subscription_id limit 1
    ) as s;
    if v_found.run_ids is not null then
        select d.delivered, d.notices into runs, notices
        from holdfast._tell_waiting(
            v_now, v_found.run_ids, v_found.signals, p_topic, p_payload, event_id) as d;
    end if;
    if v_found.workflows is not null then
        select s.started, s.refused, s.notices into workflows, refused, v_told
        from holdfast._start_subscribed(
            v_now, v_found.workflows, p_topic, p_payload, event_id) as s;
        notices := notices || v_told;
    end if;
    if v_found.queues is not null then
        v_told := holdfast._send_event(v_now, v_found.queues, p_topic, p_payload, event_id);
        queues := cardinality(v_told);
        notices := notices || (
            select array_agg(array['messages/' || u.name, u.name])
            from unnest(v_told) as u (name));
    end if;
    if v_found.urls is not null then
        insert into holdfast.http_deliveries (subscription_id, event_id, topic, payload,
            published_at, visible_at)
        select u.id, event_id, p_topic, p_payload, v_now, v_now
        from unnest(v_found.urls) as u (id) order by u.id
        on conflict on constraint http_deliveries_subscription_id_event_id_key do nothing;
        get diagnostics urls = row_count;
        notices := notices || array[array['deliveries', '']];
    end if;
    if not p_forwarded and exists (select from holdfast.shard s)
        and holdfast._forward_event(p_topic, p_payload, event_id)
    then
        notices := notices || array[array['forwards', '']];
    end if;
    notices := holdfast._tell(p_tell, notices);
end $$;

-- Return the subscriptions that an event reaches, in no order; paused ones are left out. Those with
-- a condition are found by one of its leaves, so that those with other conditions cost nothing.
-- Locks nothing. Called by publish.
create or replace function holdfast._reached(p_topic text, p_payload json)
returns table (subscription_id bigint)
language plpgsql stable
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_paths text[] := holdfast._fitting_paths(p_topic);
    v_keys text[] := '{""}';
    v_payload jsonb;
begin
    if cardinality(v_paths) = 0 then
        return;
    end if;
    if exists (
        select from unnest(v_paths) as p (path)
        cross join lateral (
            select from holdfast.subscriptions s
            where s.path = p.path and (s.match_key > '' or s.match is not null) limit 1
        ) as s)
    then
        begin
            v_payload := p_payload::jsonb;
            v_keys := '{""}' || holdfast._leaves(v_payload);
        exception
            when numeric_value_out_of_range then null;  -- it has no condition's leaf
        end;
    end if;
    return query
    select s.subscription_id
    from unnest(v_paths) as p (path)
    cross join unnest(v_keys) as k (match_key)
    cross join lateral (
        select s.subscription_id from holdfast.subscriptions s
        where s.path = p.path and s.match_key = k.match_key and s.paused_at is null
            and (s.match is null or v_payload @> s.match)
        offset 0
    ) as s;
end $$;

-- Start a run for each subscription of a workflow. The key of a run is that of its event and
-- subscription. Headers say which event started it. `notices` are (topic, payload).
-- Locks: as start_runs. Called by publish.
create or replace function holdfast._start_subscribed(
    p_now timestamptz, p_ids bigint[], p_topic text, p_payload json, p_event_id text,
    out started int, out refused int, out notices text[]
)
language plpgsql
as $$
declare
    v_starts holdfast._start[];
begin
    v_starts := array(
        select holdfast._new_start(holdfast.keyed_run_id(s.target, n.key), s.target, p_payload,
            s.version, n.key, s.queue, s.priority::int, p_now, s.timeout, s.retention, s.tags,
            holdfast._event_headers(s.headers, p_topic, p_event_id))
        from (
            select u.id, u.place, p_event_id || '/' || u.id as key
            from unnest(p_ids) with ordinality as u (id, place)
        ) as n
        cross join lateral (
            select s.* from holdfast.subscriptions s where s.subscription_id = n.id limit 1
        ) as s
        order by n.place);
    if cardinality(v_starts) = 0 then  -- removed while the publish waited for runs to tell
        started := 0;
        refused := 0;
        return;
    end if;
    select count(*) filter (where s.created), count(s.refused) into started, refused
    from holdfast._start_all(p_now, v_starts, true) as s;
    select array_agg(array[holdfast._hint_topic('starts', q.runs), q.queue]) into notices
    from (
        select coalesce(u.queue, holdfast._queue_of(u.run_id)) as queue, count(*) as runs
        from unnest(v_starts) as u group by 1 order by 1
    ) as q
    where started > 0 and q.queue is not null;  -- null: of a start that was refused
end $$;

-- Return the headers of a run that an event starts: those of the subscription, and which event it
-- is. Called by _start_subscribed and _send_event.
create or replace function holdfast._event_headers(p_headers json, p_topic text, p_event_id text)
returns json
language sql stable parallel safe
return (coalesce(p_headers::jsonb, '{}') || jsonb_build_object(
    'holdfast-topic', p_topic, 'holdfast-event', p_event_id))::json;
