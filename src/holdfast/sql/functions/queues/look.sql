-- Look into message queues, and get dead letters out of them.

-- Count what is in message queues: in one, or in all, by name. Counts end at p_limit. `due` waits
-- and may be received, `delayed` waits for its moment, `dead` waits in the queue of the dead
-- letters and came from this one. oldest_due_at is since when the oldest of what is due has been
-- due. In a group, a message is not due before those that come first. Refuses an unknown queue
-- (HFQ01). Called by users and clients.
create or replace function holdfast.queue_metrics(
    p_queue text default null, p_limit int default 10000
) returns table (
    name text, due bigint, delayed bigint, in_flight bigint, dead bigint, oldest_due_at bigint
)
language plpgsql stable
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := holdfast.now();
    v_limit int := holdfast._limit(p_limit);
begin
    if p_queue is not null then
        perform holdfast._queue(p_queue);
    end if;
    return query
    select q.name, w.due, w.delayed, f.in_flight, d.dead, holdfast._micros(w.oldest)
    from holdfast.queues q
    cross join lateral (
        select count(*) filter (where m.visible_at <= v_now) as due,
            count(*) filter (where m.visible_at > v_now) as delayed,
            min(m.visible_at) filter (where m.visible_at <= v_now) as oldest
        from (
            (select m.visible_at from holdfast.messages m where m.queue_id = q.queue_id
            order by m.priority, m.visible_at limit v_limit)
            union all
            (select m.visible_at from holdfast.filtered_messages m where m.queue_id = q.queue_id
            order by m.priority, m.visible_at limit v_limit)
            union all
            (select max(m.visible_at) over (partition by m.group_key order by m.message_id)
            from (select m.group_key, m.message_id, m.visible_at from holdfast.grouped_messages m
                where m.queue_id = q.queue_id
                order by m.group_key, m.message_id limit v_limit) as m)
        ) as m
    ) as w
    cross join lateral (
        select coalesce(
                sum(cardinality(d.message_ids) - coalesce(cardinality(d.done), 0)), 0)::bigint
            as in_flight
        from (select d.message_ids, d.done from holdfast.deliveries d
            where d.queue_id = q.queue_id limit v_limit) as d
    ) as f
    cross join lateral (
        select count(*) as dead
        from holdfast.queues l
        cross join lateral (
            (select m.origin_id from holdfast.messages m where m.queue_id = l.queue_id
            limit v_limit)
            union all
            (select m.origin_id from holdfast.filtered_messages m where m.queue_id = l.queue_id
            limit v_limit)
            union all
            (select m.origin_id from holdfast.grouped_messages m where m.queue_id = l.queue_id
            limit v_limit)
        ) as m
        where l.name = q.dead_letters and m.origin_id = q.queue_id
    ) as d
    where p_queue is null or q.name = p_queue
    order by q.name;
end $$;

-- Return messages of a queue without receiving them: first what waits, in the order of receives,
-- and after that what a limit with a key holds up, then what is in flight. `origin` is the queue
-- whose dead letter it is; visible_at is when it may be received. Refuses an unknown queue (HFQ01)
-- and a limit below 0 (22023). Called by users and clients.
create or replace function holdfast.list_messages(p_queue text, p_limit int default 100)
returns table (
    message_id bigint, in_flight boolean, group_key text, priority int, attempts int,
    visible_at bigint, sent_at bigint, origin text, payload json, headers json, error text
)
language plpgsql stable
set enable_bitmapscan = off
as $$
declare
    v_id int := (holdfast._queue(p_queue)).queue_id;
    v_limit int := holdfast._limit(p_limit);
begin
    return query
    select m.message_id, m.in_flight, m.group_key, m.priority, m.attempts,
        holdfast._micros(m.visible_at), holdfast._micros(m.sent_at), q.name,
        coalesce(m.payload, holdfast._body(v_id, m.message_id)), m.headers, m.error
    from (
        (select m.message_id, false as in_flight, null::text as group_key,
            m.priority::int % 8 as priority, m.attempts, m.visible_at, m.sent_at, m.origin_id,
            m.payload, m.headers, m.error
        from holdfast.messages m where m.queue_id = v_id
        order by m.priority, m.visible_at, m.message_id limit v_limit)
        union all
        (select m.message_id, false, null, m.priority % 8, m.attempts, m.visible_at, m.sent_at,
            m.origin_id, m.payload, m.headers, m.error
        from holdfast.filtered_messages m where m.queue_id = v_id
        order by m.priority, m.visible_at, m.message_id limit v_limit)
        union all
        (select m.message_id, false, m.group_key, 2, m.attempts, m.visible_at, m.sent_at,
            m.origin_id, m.payload, m.headers, m.error
        from holdfast.grouped_messages m where m.queue_id = v_id
        order by m.group_key, m.message_id limit v_limit)
        union all
        (select m.id, true, d.group_key, coalesce(m.priority, 2), m.attempts, d.visible_at,
            m.sent_at, m.origin_id, m.payload, m.headers, m.error
        from (select * from holdfast.deliveries d where d.queue_id = v_id limit v_limit) as d
        cross join lateral unnest(d.message_ids, d.priorities, d.attempts, d.origin_ids,
            d.sent_ats, d.payloads, d.headers, d.errors) with ordinality
            as m (id, priority, attempts, origin_id, sent_at, payload, headers, error, place)
        where m.place <> all (coalesce(d.done, '{}')))
    ) as m
    left join holdfast.queues q on q.queue_id = m.origin_id
    order by m.in_flight, m.priority, m.visible_at, m.message_id
    limit v_limit;
end $$;

-- Return messages as list_messages does, with the first p_clip characters of each payload as text.
-- Called by clients.
create or replace function holdfast.clipped_messages(p_queue text, p_limit int, p_clip int)
returns table (
    message_id bigint, in_flight boolean, group_key text, priority int, attempts int,
    visible_at bigint, sent_at bigint, origin text, payload text, headers json, error text
)
language sql stable
as $$
    select m.message_id, m.in_flight, m.group_key, m.priority, m.attempts, m.visible_at,
        m.sent_at, m.origin,
        case when p_clip > 0 then left(m.payload::text, p_clip) else '' end, m.headers, m.error
    from holdfast.list_messages(p_queue, p_limit) as m
$$;

-- Move up to p_limit dead letters back to the queue that they come from: due at once, as if never
-- received, without the header `holdfast-receives`; in a FIFO queue before what is newer of the
-- group. With p_message_ids only these. Dead letters in flight stay. Returns how many: call it
-- again if it returns p_limit, with the moment of the first call as p_before, in microseconds since
-- 1970: what has failed again since then stays. Refuses an unknown queue (HFQ01), and one without
-- dead letters (22023).
-- Locks: the messages, skipping what others hold. Called by users and clients.
create or replace function holdfast.redrive_messages(
    p_queue text, p_limit int default 1000, p_message_ids bigint[] default null,
    p_before bigint default null
) returns int
language plpgsql
reset plan_cache_mode
as $$
declare
    v_now timestamptz := holdfast.now();
    v_before timestamptz := coalesce(holdfast._moment(p_before), v_now);
    v_queue holdfast.queues := holdfast._queue(p_queue);
    v_dead holdfast.queues;
    v_count int;
begin
    select * into v_dead from holdfast.queues q where q.name = v_queue.dead_letters;
    if v_dead.queue_id is null then
        raise invalid_parameter_value using message = format(
            'queue %s has no dead letters of its own: name one created with max_receives', p_queue);
    end if;
    if v_queue.fifo then
        with gone as (
            delete from holdfast.grouped_messages m where m.ctid = any (array(
                select m.ctid from holdfast.grouped_messages m
                where m.queue_id = v_dead.queue_id and m.origin_id = v_queue.queue_id
                    and (p_message_ids is null or m.message_id = any (p_message_ids))
                    and (m.visible_at <= v_before or m.visible_at > v_now)
                limit holdfast._limit(p_limit) for update skip locked)) returning m.*
        ), moved as (
            insert into holdfast.grouped_messages (queue_id, group_key, message_id, visible_at,
                sent_at, payload, headers, error)
            select v_queue.queue_id, g.group_key, g.message_id, v_now, g.sent_at, g.payload,
                nullif(g.headers::jsonb - 'holdfast-receives', '{}')::json, g.error
            from gone g
        ), tokens as (
            insert into holdfast.group_tokens (queue_id, visible_at, token_id, group_key)
            select v_queue.queue_id, v_now, holdfast._next_message_id(), g.group_key
            from (select distinct g.group_key from gone g) as g
        ), bodies as (
            update holdfast.bodies b set queue_id = v_queue.queue_id from gone g
            where g.payload is null and b.queue_id = v_dead.queue_id
                and b.message_id = g.message_id
        )
        select count(*) into v_count from gone;
        return v_count;
    end if;
    with plain as (
        delete from holdfast.messages m where m.ctid = any (array(
            select m.ctid from holdfast.messages m
            where m.queue_id = v_dead.queue_id and m.origin_id = v_queue.queue_id
                and (p_message_ids is null or m.message_id = any (p_message_ids))
                and (m.visible_at <= v_before or m.visible_at > v_now)
            limit holdfast._limit(p_limit) for update skip locked)) returning m.*
    ), filtered as (
        delete from holdfast.filtered_messages m where m.ctid = any (array(
            select m.ctid from holdfast.filtered_messages m
            where m.queue_id = v_dead.queue_id and m.origin_id = v_queue.queue_id
                and (p_message_ids is null or m.message_id = any (p_message_ids))
                and (m.visible_at <= v_before or m.visible_at > v_now)
            limit holdfast._limit(p_limit) for update skip locked)) returning m.*
    ), gone as materialized (
        select * from plain union all select * from filtered
    ), waiting as (
        insert into holdfast.messages (queue_id, priority, visible_at, message_id, sent_at,
            payload, headers, error)
        select v_queue.queue_id, case when v_queue.has_priorities then g.priority % 8 else 2 end,
            v_now, g.message_id, g.sent_at, g.payload,
            nullif(g.headers::jsonb - 'holdfast-receives', '{}')::json, g.error
        from gone g where not v_queue.has_filters
    ), matching as (
        insert into holdfast.filtered_messages (queue_id, priority, visible_at, message_id,
            sent_at, payload, headers, error)
        select v_queue.queue_id, case when v_queue.has_priorities then g.priority % 8 else 2 end,
            v_now, g.message_id, g.sent_at,
            coalesce(g.payload, holdfast._body(v_dead.queue_id, g.message_id)),
            nullif(g.headers::jsonb - 'holdfast-receives', '{}')::json, g.error
        from gone g where v_queue.has_filters
    ), bodies as (
        update holdfast.bodies b set queue_id = v_queue.queue_id from gone g
        where g.payload is null and not v_queue.has_filters and b.queue_id = v_dead.queue_id
            and b.message_id = g.message_id
    ), unneeded as (
        delete from holdfast.bodies b using gone g
        where g.payload is null and v_queue.has_filters and b.queue_id = v_dead.queue_id
            and b.message_id = g.message_id
    )
    select count(*) into v_count from gone;
    return v_count;
end $$;

-- Return messages of a queue that were acknowledged and are kept, the newest first. Refuses an
-- unknown queue (HFQ01) and a limit below 0 (22023). Called by users and clients.
create or replace function holdfast.list_kept(p_queue text, p_limit int default 100)
returns table (
    message_id bigint, acked_at bigint, group_key text, attempts int, sent_at bigint,
    payload json, headers json
)
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    return query
    select k.message_id, holdfast._micros(k.acked_at), k.group_key, k.attempts,
        holdfast._micros(k.sent_at), k.payload, k.headers
    from holdfast.kept_messages k
    where k.queue_id = (holdfast._queue(p_queue)).queue_id
    order by k.message_id desc limit holdfast._limit(p_limit);
end $$;
