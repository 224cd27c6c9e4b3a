-- One message by its id: look at it, cancel it, change it.

-- Return the table that a message of a queue is in, and what it has; no row if it is not in the
-- queue. The answer is of one moment. The index of the queue is read, but no row beside its own.
-- Locks nothing. Called by _hold_message and get_message.
create or replace function holdfast._find_message(p_queue_id int, p_message_id bigint)
returns table (
    place text, group_key text, priority smallint, attempts int, visible_at timestamptz,
    sent_at timestamptz, origin_id int, payload json, headers json, error text, delivery_id uuid
)
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    return query
    select 'messages', null::text, m.priority, m.attempts, m.visible_at, m.sent_at, m.origin_id,
        m.payload, m.headers, m.error, null::uuid
    from holdfast.messages m where m.queue_id = p_queue_id and m.message_id = p_message_id
    union all
    select 'filtered_messages', null, m.priority, m.attempts, m.visible_at, m.sent_at, m.origin_id,
        m.payload, m.headers, m.error, null
    from holdfast.filtered_messages m
    where m.queue_id = p_queue_id and m.message_id = p_message_id
    union all
    select 'grouped_messages', m.group_key, 2::smallint, m.attempts, m.visible_at, m.sent_at,
        m.origin_id, m.payload, m.headers, m.error, null
    from holdfast.grouped_messages m where m.queue_id = p_queue_id and m.message_id = p_message_id
    union all
    select 'deliveries', d.group_key, coalesce(m.priority, 2::smallint), m.attempts, d.visible_at,
        m.sent_at, m.origin_id, m.payload, m.headers, m.error, d.delivery_id
    from holdfast.deliveries d
    cross join lateral unnest(d.message_ids, d.priorities, d.attempts, d.origin_ids,
        d.sent_ats, d.payloads, d.headers, d.errors) with ordinality
        as m (id, priority, attempts, origin_id, sent_at, payload, headers, error, nth)
    where d.queue_id = p_queue_id and p_message_id = any (d.message_ids) and m.id = p_message_id
        and m.nth <> all (coalesce(d.done, '{}'));
end $$;

-- Return a message that waits in a queue or is in flight, as list_messages does; no row if it is
-- not in the queue. Refuses an unknown queue (HFQ01). Locks nothing. Called by users and clients.
create or replace function holdfast.get_message(p_queue text, p_message_id bigint)
returns table (
    message_id bigint, in_flight boolean, group_key text, priority int, attempts int,
    visible_at bigint, sent_at bigint, origin text, payload json, headers json, error text
)
language plpgsql stable
as $$
declare
    v_id int := (holdfast._queue(p_queue)).queue_id;
begin
    return query
    select p_message_id, m.place = 'deliveries', m.group_key, m.priority::int % 8, m.attempts,
        holdfast._micros(m.visible_at), holdfast._micros(m.sent_at), q.name,
        coalesce(m.payload, holdfast._body(v_id, p_message_id)), m.headers, m.error
    from holdfast._find_message(v_id, p_message_id) as m
    left join holdfast.queues q on q.queue_id = m.origin_id;
end $$;

-- Lock a message that waits in a queue; return its table and its place there, nulls if it is not in
-- the queue. One whose visibility has ended is given back first. A receive that is under way is
-- waited for, and one that comes later does not find the message. Refuses a message in flight
-- (HFQ04).
--
-- Between the look and the lock it may be received, given back or changed: it is looked for again.
-- Locks: of a FIFO queue the advisory lock of the group; the message; of a visibility that has
-- ended, as return_messages. Called by cancel_message and change_message.
create or replace function holdfast._hold_message(
    p_queue holdfast.queues, p_message_id bigint, out place text, out tid tid
)
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_one record;
begin
    loop
        select * into v_one from holdfast._find_message(p_queue.queue_id, p_message_id) limit 1;
        exit when not found;
        if v_one.place = 'grouped_messages' then
            perform pg_advisory_xact_lock(hashtextextended(v_one.group_key, p_queue.lock_key));
            select m.ctid into tid from holdfast.grouped_messages m
            where m.queue_id = p_queue.queue_id and m.group_key = v_one.group_key
                and m.message_id = p_message_id
            for update;
        elsif v_one.place = 'filtered_messages' then
            select m.ctid into tid from holdfast.filtered_messages m
            where m.queue_id = p_queue.queue_id and m.priority = v_one.priority
                and m.visible_at = v_one.visible_at and m.message_id = p_message_id
            for update;
        elsif v_one.place = 'messages' then
            select m.ctid into tid from holdfast.messages m
            where m.queue_id = p_queue.queue_id and m.priority = v_one.priority
                and m.visible_at = v_one.visible_at and m.message_id = p_message_id
            for update;
        elsif v_one.visible_at > holdfast.now() then
            raise exception using errcode = 'HFQ04', message = format(
                'message %s of queue %s is in flight: it can be cancelled or changed when its '
                'receiver has given it back, or when its visibility has ended', p_message_id,
                p_queue.name);
        else
            perform holdfast.return_messages(array[p_queue.queue_id], array[v_one.delivery_id],
                null, null, array['the visibility timeout ended']);
        end if;
        if tid is not null then
            place := v_one.place;
            exit;
        end if;
    end loop;
    if v_one.priority >= 8 then  -- it may come to wait for a limit with another key
        delete from holdfast.limited_messages k
        where k.queue_id = p_queue.queue_id and k.message_id = p_message_id;
    end if;
    if place = 'grouped_messages' then  -- what comes after it may have waited for it
        insert into holdfast.group_tokens (queue_id, visible_at, token_id, group_key)
        values (p_queue.queue_id, holdfast.now(), holdfast._next_message_id(), v_one.group_key);
    end if;
end $$;

-- Cancel a message that waits in a queue: it is deleted, and not kept. Its deduplication id stays
-- known. Returns false if it is not in the queue. Refuses an unknown queue (HFQ01), and a message
-- in flight (HFQ04).
-- Locks: as _hold_message. Called by users and clients.
create or replace function holdfast.cancel_message(p_queue text, p_message_id bigint)
returns boolean
language plpgsql
as $$
declare
    v_queue holdfast.queues := holdfast._queue(p_queue);
    v_held record := holdfast._hold_message(v_queue, p_message_id);
begin
    if v_held.tid is null then
        return false;
    end if;
    execute format(
        $query$delete from holdfast.%I m where m.ctid = $1$query$, v_held.place)
    using v_held.tid;
    delete from holdfast.bodies b
    where b.queue_id = v_queue.queue_id and b.message_id = p_message_id;
    perform holdfast._drop_failures(array[p_message_id]);
    return true;
end $$;

-- Change what is given of a message that waits in a queue: it is due p_delay_seconds from now, or
-- at p_due_at, in microseconds since 1970. How often it was received stays, and its place in its
-- group. The next receive has what was changed. Returns false if it is not in the queue. Refuses an
-- unknown queue (HFQ01), a message in flight (HFQ04), and values that are not allowed, or not in a
-- queue of this kind (22023).
-- Locks: as _hold_message. Called by users and clients.
create or replace function holdfast.change_message(
    p_queue text, p_message_id bigint, p_payload json default null,
    p_delay_seconds float8 default null, p_due_at bigint default null, p_priority int default null
) returns boolean
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_queue holdfast.queues := holdfast._queue(p_queue);
    v_delay float8 := holdfast._delay(v_now, p_delay_seconds, p_due_at);
    v_due_at timestamptz;
    v_inline json := case when pg_column_size(p_payload) <= 1500 then p_payload end;
    v_held record;
begin
    perform holdfast._check_message_change(v_queue, p_payload, v_delay, p_priority);
    v_due_at := v_now + v_delay * interval '1 second';
    v_held := holdfast._hold_message(v_queue, p_message_id);
    if v_held.tid is null then
        return false;
    elsif v_held.place = 'grouped_messages' then  -- no receive looks at the group meanwhile
        update holdfast.grouped_messages m set visible_at = coalesce(v_due_at, m.visible_at),
            payload = case when p_payload is null then m.payload else v_inline end
        where m.ctid = v_held.tid;
    elsif v_held.place = 'filtered_messages' then
        with gone as (
            delete from holdfast.filtered_messages m where m.ctid = v_held.tid returning m.*
        )
        insert into holdfast.filtered_messages (queue_id, priority, visible_at, message_id,
            attempts, origin_id, sent_at, payload, headers, error)
        select g.queue_id, coalesce(p_priority, g.priority % 8), coalesce(v_due_at, g.visible_at),
            g.message_id, g.attempts, g.origin_id, g.sent_at, coalesce(p_payload, g.payload),
            g.headers, g.error
        from gone g;
        return true;
    else
        with gone as (delete from holdfast.messages m where m.ctid = v_held.tid returning m.*)
        insert into holdfast.messages (queue_id, priority, visible_at, message_id, attempts,
            origin_id, sent_at, payload, headers, error)
        select g.queue_id, coalesce(p_priority, g.priority % 8), coalesce(v_due_at, g.visible_at),
            g.message_id, g.attempts, g.origin_id, g.sent_at,
            case when p_payload is null then g.payload else v_inline end, g.headers, g.error
        from gone g;
    end if;
    if p_payload is not null then
        delete from holdfast.bodies b
        where b.queue_id = v_queue.queue_id and b.message_id = p_message_id;
        if v_inline is null then
            perform holdfast._send_bodies(v_queue.queue_id, array[p_message_id], array[p_payload],
                array[true]);
        end if;
    end if;
    return true;
end $$;

-- Refuse what a message of a queue cannot be changed to (22023). Called by change_message.
create or replace function holdfast._check_message_change(
    p_queue holdfast.queues, p_payload json, p_delay float8, p_priority int
) returns void
language plpgsql immutable
as $$
declare
    v_payloads json[] := array[coalesce(p_payload, 'null')];
begin
    if not holdfast._are_messages(
        v_payloads, array[p_delay], null, null, array[p_priority], null)
    then
        perform holdfast._check_messages(
            v_payloads, array[p_delay], null, null, array[p_priority], null);
    end if;
    if p_priority is not null and not p_queue.has_priorities then
        raise invalid_parameter_value using message = format(
            'queue %s was created without priorities', p_queue.name);
    end if;
    if p_payload is not null and p_queue.has_filters and not holdfast._is_searchable(p_payload) then
        raise invalid_parameter_value using message = format(
            'queue %s has filters: the numbers of a payload have up to 131,072 digits before '
            'the point and 16,383 after it', p_queue.name);
    end if;
end $$;
