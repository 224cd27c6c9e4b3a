-- Schedules that start no run: they publish to a topic, or send to a message queue.

-- Refuse a schedule whose ticks are sent, if it has a value that is not allowed (22004, 22023), a
-- policy of overlap other than `allow` included: nothing runs that could overlap. Locks nothing.
-- Called by _check_schedule_target.
create or replace function holdfast._check_sender(p_new holdfast.schedules) returns void
language plpgsql immutable
as $$
declare
    v_does text := case p_new.kind when 'topic' then 'publishes to a topic'
        else 'sends to a message queue' end;
begin
    if strpos(p_new.name, '/') = 0 then
        raise invalid_parameter_value using message = format(
            'schedule %s %s, which says nothing of an app: name it APP/%s', p_new.name, v_does,
            p_new.name);
    end if;
    if p_new.kind = 'topic' then
        perform holdfast._check_topic(p_new.target);
    else
        perform holdfast._check_name('a queue', p_new.target);
    end if;
    perform holdfast._check_given('the payload', p_new.input is not null);
    perform holdfast._check_json('the payload', p_new.input);
    if p_new.headers is not null then
        perform holdfast._check_texts('headers', 'object', p_new.headers);
    end if;
    perform holdfast._check_id('a group', p_new.message_group);
    perform holdfast._check_priority(p_new.priority);
    if num_nonnulls(p_new.version, p_new.queue, p_new.timeout, p_new.retention) > 0
        or p_new.tags is not null
    then
        raise invalid_parameter_value using message = format(
            'schedule %s %s: version, queue, timeout, retention and tags are of runs, and it '
            'starts none', p_new.name, v_does);
    end if;
    if p_new.kind = 'topic' and num_nonnulls(p_new.priority, p_new.headers, p_new.message_group) > 0
    then
        raise invalid_parameter_value using message = format(
            'schedule %s publishes to a topic: priority, headers and group are of messages',
            p_new.name);
    end if;
    if p_new.kind = 'topic' and p_new.jitter > 0 then
        raise invalid_parameter_value using message = format(
            'schedule %s publishes to a topic, which cannot be delayed by a jitter', p_new.name);
    end if;
    if p_new.overlap is not null and p_new.overlap <> 'allow' then
        raise invalid_parameter_value using message = format(
            'schedule %s %s: it starts no run that could overlap, so the policy is ''allow'', '
            'not %s', p_new.name, v_does, quote_literal(left(p_new.overlap, 200)));
    end if;
end $$;

-- Refuse a policy of overlap that is asked for ticks of a schedule that starts no run (22023). A
-- null is allowed. Locks nothing. Called by trigger_schedule and backfill_schedule.
create or replace function holdfast._check_overlap_of(p_name text, p_overlap text) returns void
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    if p_overlap <> 'allow' and exists (
        select from holdfast.schedules s where s.name = p_name and s.kind in ('topic', 'queue'))
    then
        raise invalid_parameter_value using message = format(
            'schedule %s starts no run that could overlap, so the policy is ''allow'', not %s',
            p_name, quote_literal(left(p_overlap, 200)));
    end if;
end $$;

-- Publish or send what ticks publish or send whose outcome is 'started': they are 'sent' then, or
-- 'failed' if what they send is not taken. Other ticks stay as they are. The bucket of a tick is
-- written in this transaction, so a tick sends once. An event has an id that follows from schedule
-- and tick; `reached` is the number of its targets. A message has its schedule and its tick among
-- its headers. `notices` are (topic, payload).
-- Locks: expects the schedules locked; as publish, one tick after the other. Called by
-- _start_ticks.
create or replace function holdfast._send_ticks(
    p_now timestamptz, p_ticks holdfast._tick[],
    out ticks holdfast._tick[], out notices text[]
)
language plpgsql
as $$
declare
    v_tick holdfast._tick;
    v_schedule record;
    v_told text[];
begin
    foreach v_tick in array p_ticks loop
        select s.name, s.kind, s.target, s.input, s.priority::int, s.headers, s.jitter,
            s.message_group
        into v_schedule
        from holdfast.schedules s where s.name = v_tick.schedule;
        if v_tick.outcome = 'started' and v_schedule.kind in ('topic', 'queue') then
            begin
                v_told := null;
                if v_schedule.kind = 'topic' then
                    select p.workflows + p.runs + p.queues + p.urls, p.notices
                    into v_tick.reached, v_told
                    from holdfast.publish(v_schedule.target, v_schedule.input,
                        holdfast._event_of_tick(v_schedule.name, v_tick.tick_at)) as p;
                else
                    v_tick.message_id := holdfast._send_tick(p_now, v_tick.tick_at,
                        v_schedule.name, v_schedule.target, v_schedule.input,
                        v_schedule.priority, v_schedule.headers, v_schedule.jitter,
                        v_schedule.message_group);
                    v_told := array[array['messages/' || v_schedule.target, v_schedule.target]];
                end if;
                v_tick.outcome := 'sent';
                notices := notices || v_told;
            exception
                when invalid_parameter_value or null_value_not_allowed or sqlstate 'HFQ01' then
                    v_tick.outcome := 'failed';
                    v_tick.error := left(sqlerrm, 1000);
            end;
        end if;
        ticks := ticks || v_tick;
    end loop;
end $$;

-- Send the message of a tick. Returns its id. Refuses what send_messages does. Locks nothing that
-- exists. Called by _send_ticks.
create or replace function holdfast._send_tick(
    p_now timestamptz, p_at timestamptz, p_name text, p_queue text, p_payload json,
    p_priority int, p_headers json, p_jitter float8, p_group text
) returns bigint
language plpgsql
as $$
declare
    v_delay float8 := extract(epoch from
        holdfast._start_of_tick(p_name, p_at, p_jitter) - p_now);
    v_group text := coalesce(p_group, (
        select p_name from holdfast.queues q where q.name = p_queue and q.fifo));
begin
    return (holdfast.send_messages(p_queue, array[p_payload],
        p_delays => case when v_delay > 0 then array[v_delay] end,
        p_groups => case when v_group is not null then array[v_group] end,
        p_priorities => case when p_priority is not null then array[p_priority] end,
        p_headers => array[holdfast._tick_headers(p_headers, p_name, p_at)]))[1];
end $$;

-- Return the id of the event that a tick publishes: that of the tick, or, if this is too long for
-- an event, a digest of it. Called by _send_ticks.
create or replace function holdfast._event_of_tick(p_name text, p_at timestamptz) returns text
language sql stable parallel safe
return (
    select case when octet_length(k.key) <= 255 then k.key
        else encode(sha256(convert_to(k.key, 'UTF8')), 'hex') end
    from (select p_name || '@' || holdfast._tick_text(p_at) as key) as k);
