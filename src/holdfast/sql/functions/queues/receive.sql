-- Receive messages.

-- Receive up to p_limit messages: the most urgent first, then the oldest; of a FIFO queue the
-- oldest p_per_group of up to p_limit groups that have nothing in flight. What is received is in
-- flight until it is acknowledged or given back, or until its visibility ends:
-- p_visibility_seconds, by default the queue's.
--
-- Each row is a delivery, with its messages as parallel arrays. The last row is about the call as a
-- whole; of a plain queue it is the delivery as well, with nulls where nothing was found. It has
-- the time; when to ask again (at once if as much was found as asked for, null for never); how far
-- the call has come; what was acknowledged, and whether a group has more now.
--
-- p_contains is a condition: only messages that contain this JSON, in queues with filters. p_since
-- hides what came due before, for each priority (of queues without, the first element): callers
-- pass the `newest` that they were given, so that dead entries are not read again. Now and then
-- they pass null: only then are messages found that a transaction committed late, and deliveries
-- given back whose visibility has ended. p_acks are deliveries of this queue that are acknowledged
-- in the same transaction. With p_joined false the call promises to commit at once.
--
-- A paused queue gives nothing, and one with limits what they allow: of a FIFO queue with a limit
-- by key one message of a group. Refuses an unknown queue (HFQ01), and values that are not allowed,
-- or not in a queue of this kind (22004, 22023).
-- Locks: the deliveries p_acks, by id; then deliveries, messages and tokens, skipping locked ones;
-- advisory locks of groups, without waiting. Called by pop_messages, receive, users and clients.
create or replace function holdfast.receive_messages(
    p_queue text, p_limit int default 1, p_visibility_seconds float8 default null,
    p_consumer text default null, p_since bigint[] default null, p_contains json default null,
    p_per_group int default 1, p_acks uuid[] default null, p_joined boolean default true
) returns table (
    now bigint, next_due_at bigint, newest bigint[], acked boolean[], freed boolean,
    queue_id int, delivery_id uuid, group_key text, message_ids bigint[], attempts int[],
    sent_ats timestamptz[], payloads json[], headers json[], errors text[]
)
language plpgsql
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := holdfast.now();
    v_q record;
    v_until timestamptz;
    v_since timestamptz[];
    v_newest timestamptz[];
    v_priorities smallint[];
    v_origin_ids int[];
    v_has_bodies boolean;
    v_ack record;
    v_acked boolean[];
    v_freed boolean;
    v_limit int := p_limit;  -- what limits allow of it
    v_room record;
    v_limited boolean;
    v_keyed boolean;
    v_allowed_at timestamptz;
begin
    select q.queue_id, q.lock_key, q.fifo, q.visibility_seconds, q.has_priorities, q.has_filters,
        q.keep_seconds is not null as keeps,
        q.is_limited,
        exists (select from holdfast.pauses p where p.scope = 'queue' and p.name = q.name) as paused
    into v_q
    from holdfast.queues q where q.name = p_queue;
    if v_q.queue_id is null then
        perform holdfast._no_queue(p_queue);
    end if;
    if (p_limit between 1 and 10000 and p_per_group between 1 and 10000
        and coalesce(p_visibility_seconds, 1) between 0.001 and 1e10) is not true
        or p_contains is not null
            and not (v_q.has_filters and holdfast._is_legible(p_contains)
                and holdfast._is_searchable(p_contains))
    then
        perform holdfast._check_receive(p_queue, v_q.fifo, v_q.has_filters, p_limit,
            p_visibility_seconds, p_contains, p_per_group);
    end if;
    v_until := v_now + coalesce(p_visibility_seconds, v_q.visibility_seconds) * interval '1 second';
    if p_acks is not null then
        v_ack := holdfast._ack(v_q.queue_id, p_acks);
        v_acked := v_ack.acked;
        v_freed := v_ack.freed;
    end if;
    -- Of a queue without priorities, moments are converted without a query: that is quicker.
    if p_since is null then
        perform holdfast._return_expired(v_q.queue_id, v_now, 100);
    elsif not v_q.has_priorities then
        v_since := array[coalesce(holdfast._moment(p_since[1]), '-infinity')];
    else
        v_since := array(select coalesce(holdfast._moment(u.micros), '-infinity')
            from unnest(p_since) with ordinality as u (micros, place) order by u.place);
    end if;
    if v_q.paused then
        now := holdfast._micros(v_now);
        acked := v_acked;
        freed := v_freed;
        return next;
        return;
    end if;
    if v_q.is_limited then
        v_room := holdfast._message_room(v_q.queue_id, p_queue, v_now);
        v_limit := least(p_limit, v_room.room);
        v_limited := nullif(v_room.holds, false);
        v_keyed := v_room.keyed;
        v_allowed_at := v_room.next_at;
        if v_room.busy or v_limit = 0 then
            now := holdfast._micros(v_now);
            next_due_at := holdfast._micros(case when v_room.busy then v_now + interval '0.25 s'
                else least(holdfast._next_message(v_q.queue_id, v_now), v_allowed_at) end);
            acked := v_acked;
            freed := v_freed and v_room.busy;
            return next;
            return;
        end if;
        if v_q.fifo then
            return query select holdfast._micros(v_now), holdfast._micros(g.next_due_at),
                null::bigint[], v_acked, v_freed, g.queue_id, g.delivery_id, g.group_key,
                g.message_ids, g.attempts, g.sent_ats, g.payloads, g.headers, g.errors
            from holdfast._receive_limited(v_q.queue_id, v_q.lock_key, p_queue, v_now, p_limit,
                v_until, p_consumer, p_per_group, v_q.keeps, p_joined, v_room.room, v_limited,
                v_keyed) as g;
            return;
        end if;
    end if;
    if v_q.fifo then
        return query select holdfast._micros(v_now), holdfast._micros(g.next_due_at),
            holdfast._all_micros(g.newest), v_acked, v_freed, g.queue_id, g.delivery_id,
            g.group_key, g.message_ids, g.attempts, g.sent_ats, g.payloads, g.headers, g.errors
        from holdfast._receive_groups(v_q.queue_id, v_q.lock_key, v_now, p_limit, v_until,
            p_consumer, coalesce(v_since[1], '-infinity'), p_per_group, v_q.keeps, p_joined) as g;
        return;
    end if;

    if v_keyed then
        select * into message_ids, v_priorities, attempts, v_origin_ids, sent_ats, payloads,
            headers, errors, v_has_bodies, v_allowed_at
        from holdfast._take_by_key(v_q.queue_id, p_queue, v_now, v_limit, p_contains);
        v_allowed_at := least(v_allowed_at, v_room.next_at);
    elsif v_q.has_filters then
        select * into message_ids, v_priorities, v_newest, attempts, v_origin_ids, sent_ats,
            payloads, headers, errors, v_has_bodies
        from holdfast._take_matching(v_q.queue_id, v_now, v_limit, p_contains);
    elsif v_q.has_priorities then
        select * into message_ids, v_priorities, v_newest, attempts, v_origin_ids, sent_ats,
            payloads, headers, errors, v_has_bodies
        from holdfast._take_urgent(v_q.queue_id, v_now, v_limit, coalesce(v_since,
            '{-infinity,-infinity,-infinity,-infinity,-infinity}'));
    else
        with taken as (
            delete from holdfast.messages m where m.ctid = any (array(
                select m.ctid from holdfast.messages m
                where m.queue_id = v_q.queue_id and m.priority = 2
                    and m.visible_at >= coalesce(v_since[1], '-infinity') and m.visible_at <= v_now
                order by m.visible_at, m.message_id
                limit v_limit
                for update skip locked))
            returning m.message_id, m.visible_at, m.attempts, m.origin_id, m.sent_at, m.payload,
                m.headers, m.error
        )
        select array_agg(t.message_id), array[max(t.visible_at)], array_agg(t.attempts + 1),
            case when count(t.origin_id) > 0 then array_agg(t.origin_id) end,
            array_agg(t.sent_at), array_agg(t.payload),
            case when count(t.headers) > 0 then array_agg(t.headers) end,
            case when count(t.error) > 0 then array_agg(t.error) end,
            count(*) > count(t.payload)
        into message_ids, v_newest, attempts, v_origin_ids, sent_ats, payloads, headers, errors,
            v_has_bodies
        from (select * from taken t order by t.visible_at, t.message_id) as t;
    end if;

    if message_ids is not null then
        insert into holdfast.deliveries (queue_id, visible_at, received_at, consumer, has_bodies,
            keeps, limited, message_ids, priorities, attempts, origin_ids, sent_ats, payloads,
            headers, errors)
        values (v_q.queue_id, v_until, v_now, p_consumer, v_has_bodies, v_q.keeps, v_limited,
            message_ids, v_priorities, attempts, v_origin_ids, sent_ats, payloads, headers, errors)
        returning deliveries.delivery_id into delivery_id;
        if v_has_bodies then
            payloads := holdfast._bodies(v_q.queue_id, message_ids, payloads);
        end if;
    end if;
    if v_q.is_limited then
        if message_ids is not null then
            perform holdfast._count_messages(p_queue, v_now, payloads);
        end if;
        -- Others need not be told of room that this receive has used, or that nothing needs.
        v_freed := v_freed and (p_contains is not null
            or coalesce(cardinality(message_ids), 0) >= case when v_keyed then 1 else p_limit end);
        v_limit := 1;  -- the next receive knows if there is more, and when it is allowed
    end if;
    now := holdfast._micros(v_now);
    if coalesce(cardinality(message_ids), 0) < v_limit then
        next_due_at := holdfast._micros(
            least(holdfast._next_message(v_q.queue_id, v_now), v_allowed_at));
    else
        next_due_at := now;
    end if;
    newest := case when v_q.has_priorities then holdfast._all_micros(v_newest)
        when v_newest is not null then array[holdfast._micros(v_newest[1])] end;
    acked := v_acked;
    freed := v_freed;
    queue_id := v_q.queue_id;
    return next;
end $$;

-- Say what is wrong with a receive (22004, 22023). Called by receive_messages.
create or replace function holdfast._check_receive(
    p_queue text, p_fifo boolean, p_has_filters boolean, p_limit int, p_visibility_seconds float8,
    p_contains json, p_per_group int
) returns void
language plpgsql immutable
as $$
declare
    v_flaw text;
begin
    perform holdfast._check_given('how many messages to receive', p_limit is not null);
    perform holdfast._check_given('how many messages of a group', p_per_group is not null);
    if p_contains is not null then
        perform holdfast._check_json('condition', p_contains);
    end if;
    v_flaw := case
        when p_limit not between 1 and 10000 then format(
            'a receive asks for 1 to 10,000 messages, not %s', p_limit)
        when p_per_group not between 1 and 10000 then format(
            'a receive asks for 1 to 10,000 messages of a group, not %s', p_per_group)
        when not (p_visibility_seconds >= 0.001 and p_visibility_seconds <= 1e10) then format(
            'a message is in flight for 0.001 to 10,000,000,000 seconds, not %s; list_messages '
            'shows messages without receiving them', p_visibility_seconds)
        when p_contains is not null and p_fifo then format(
            'queue %s is FIFO: a condition would pass over the oldest message of a group', p_queue)
        when p_contains is not null and not p_has_filters then format(
            'queue %s was created without filters: a condition would read all its messages',
            p_queue)
        when p_contains is not null and not holdfast._is_searchable(p_contains) then
            'the numbers of a condition have up to 131,072 digits before the point and 16,383 '
            'after it'
        end;
    if v_flaw is not null then
        raise invalid_parameter_value using message = v_flaw;
    end if;
end $$;

-- Return moments as microseconds since 1970; null for a null or for an infinite moment. Called by
-- receive_messages.
create or replace function holdfast._all_micros(p_ats timestamptz[]) returns bigint[]
language plpgsql immutable
as $$
begin
    if p_ats is null then
        return null;
    end if;
    return array(select holdfast._micros(case when isfinite(u.at) then u.at end)
        from unnest(p_ats) with ordinality as u (at, place) order by u.place);
end $$;

-- Take messages of a queue with priorities, the most urgent first.
-- Locks: messages, skipping locked ones. Called by receive_messages.
create or replace function holdfast._take_urgent(
    p_queue_id int, p_now timestamptz, p_limit int, p_since timestamptz[],
    out message_ids bigint[], out priorities smallint[], out newest timestamptz[],
    out attempts int[], out origin_ids int[], out sent_ats timestamptz[], out payloads json[],
    out headers json[], out errors text[], out has_bodies boolean
)
language plpgsql
set enable_bitmapscan = off
as $$
begin
    with taken as (
        delete from holdfast.messages m where m.ctid = any (array(
            select m.tid
            from generate_series(0, 4) as l (priority)
            cross join lateral (
                select m.ctid as tid from holdfast.messages m
                where m.queue_id = p_queue_id and m.priority = l.priority
                    and m.visible_at >= coalesce(p_since[l.priority + 1], '-infinity')
                    and m.visible_at <= p_now
                order by m.visible_at, m.message_id
                limit p_limit
                for update skip locked
            ) as m
            limit p_limit))
        returning m.*
    )
    select array_agg(t.message_id), array_agg(t.priority), array_agg(t.attempts + 1),
        case when count(t.origin_id) > 0 then array_agg(t.origin_id) end,
        array_agg(t.sent_at), array_agg(t.payload),
        case when count(t.headers) > 0 then array_agg(t.headers) end,
        case when count(t.error) > 0 then array_agg(t.error) end,
        count(*) > count(t.payload),
        array[coalesce(max(t.visible_at) filter (where t.priority = 0), p_since[1]),
            coalesce(max(t.visible_at) filter (where t.priority = 1), p_since[2]),
            coalesce(max(t.visible_at) filter (where t.priority = 2), p_since[3]),
            coalesce(max(t.visible_at) filter (where t.priority = 3), p_since[4]),
            coalesce(max(t.visible_at) filter (where t.priority = 4), p_since[5])]
    into message_ids, priorities, attempts, origin_ids, sent_ats, payloads, headers, errors,
        has_bodies, newest
    from (select * from taken t order by t.priority, t.visible_at, t.message_id) as t;
end $$;

-- Return payloads with those filled in that are kept apart. Called by receive_messages and
-- _receive_groups.
create or replace function holdfast._bodies(
    p_queue_id int, p_message_ids bigint[], p_payloads json[]
) returns json[]
language plpgsql stable
reset enable_seqscan
as $$
begin
    return array(
        select coalesce(u.payload, holdfast._body(p_queue_id, u.id))
        from unnest(p_message_ids, p_payloads) with ordinality as u (id, payload, place)
        order by u.place);
end $$;

-- Return a payload that is kept apart.
create or replace function holdfast._body(p_queue_id int, p_message_id bigint) returns json
language plpgsql stable
reset enable_seqscan
as $$
begin
    return b.payload from holdfast.bodies b
    where b.queue_id = p_queue_id and b.message_id = p_message_id;
end $$;

-- Return when something comes due in a queue, null for never: a message, a group, or the end of a
-- delivery. An end that has passed is looked at a second later: others may be about to acknowledge
-- it. Called by receive_messages, _receive_groups and _receive_limited.
create or replace function holdfast._next_message(p_queue_id int, p_now timestamptz)
returns timestamptz
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    return least(
        (select min(m.visible_at)
        from generate_series(0, 4) as l (priority)
        cross join lateral (
            (select m.visible_at from holdfast.messages m
            where m.queue_id = p_queue_id and m.priority = l.priority and m.visible_at > p_now
            order by m.visible_at limit 1)
            union all
            (select m.visible_at from holdfast.filtered_messages m
            where m.queue_id = p_queue_id and m.priority = l.priority and m.visible_at > p_now
            order by m.visible_at limit 1)
        ) as m),
        (select t.visible_at from holdfast.group_tokens t
        where t.queue_id = p_queue_id and t.visible_at > p_now
        order by t.visible_at limit 1),
        (select case when min(d.visible_at) > p_now then min(d.visible_at)
            else p_now + interval '1 second' end
        from (
            select d.queue_id, d.visible_at from holdfast.deliveries d
            order by d.visible_at limit 100
        ) as d
        where d.queue_id = p_queue_id
        having count(*) > 0));
end $$;
