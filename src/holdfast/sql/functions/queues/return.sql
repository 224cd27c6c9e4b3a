-- Give messages back, and keep them longer.

-- Give messages back: due again after a delay, or, if received too often, in the dead letters of
-- their queue, with the header `holdfast-receives`: how often. A null place means all that is left
-- of a delivery. p_counted false: the attempt does not count. p_discarded true: it is a dead letter
-- at once, or acknowledged if its queue has no dead letters. Returns for each whether it was in
-- flight still; freed are queues that have something due at once, or room under a limit. Refuses
-- delays that are not allowed (22023).
-- Locks: deliveries by id. Called by users and clients.
create or replace function holdfast.return_messages(
    p_queue_ids int[], p_delivery_ids uuid[], p_places int[] default null,
    p_delays float8[] default null, p_errors text[] default null,
    p_counted boolean[] default null, p_discarded boolean[] default null,
    out returned boolean[], out freed text[]
)
language plpgsql
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now timestamptz := holdfast.now();
    v_done bigint[];
begin
    if p_delays is not null and (select bool_and(holdfast._is_seconds(coalesce(u.delay, 0)))
        from unnest(p_delays) as u (delay)) is false
    then
        raise invalid_parameter_value using message =
            'a message is given back for 0 to 10,000,000,000 seconds';
    end if;
    perform holdfast._lock_deliveries(p_queue_ids, p_delivery_ids);
    if array_remove(p_errors, null) <> '{}' then
        perform holdfast._keep_failures(
            p_queue_ids, p_delivery_ids, p_places, p_errors, p_counted);
    end if;
    if p_discarded is not null then
        perform holdfast._keep_discarded(p_queue_ids, p_delivery_ids, p_places, p_discarded);
    end if;
    with asked as materialized (
        select u.* from unnest(p_queue_ids, p_delivery_ids, p_places) with ordinality
            as u (queue_id, delivery_id, place, ord)
    ), found as materialized (
        select a.*, d.ctid as tid, d.group_key, coalesce(d.done, '{}') as done, d.message_ids,
            d.priorities, d.attempts, d.origin_ids, d.sent_ats, d.payloads, d.headers, d.errors,
            d.limited, q.max_receives, q.dead_letters, q.has_filters
        from (
            select a.queue_id, a.delivery_id, array_agg(a.place) as places,
                array_agg(a.ord) as ords, min(a.ord) filter (where a.place is null) as all_ord
            from asked a group by a.queue_id, a.delivery_id
        ) as a
        cross join lateral (
            select d.ctid, d.* from holdfast.deliveries d
            where d.queue_id = a.queue_id and d.delivery_id = a.delivery_id limit 1
        ) as d
        join holdfast.queues q on q.queue_id = a.queue_id
    ), back as materialized (
        select f.tid, f.queue_id, f.group_key, f.done, cardinality(f.message_ids) as size, a.ord,
            m.place::int as place, m.id,
            m.attempts - case when a.counted then 0 else 1 end as attempts, m.origin_id,
            m.sent_at, m.payload, left(coalesce(a.error, m.error), 10000) as error,
            case when l.queue_id is null then m.headers else (coalesce(m.headers::jsonb, '{}')
                || jsonb_build_object('holdfast-receives', m.attempts::text))::json end as headers,
            v_now + coalesce(a.delay, 0) * interval '1 second' as due_at,
            l.queue_id as dead_id, coalesce(l.queue_id, f.queue_id) as to_id,
            a.discarded and l.queue_id is null as is_done,
            -- What conditions cannot be compared with waits beside: it can be seen and moved back.
            case when l.queue_id is null then f.has_filters
                else l.has_filters and holdfast._is_searchable(
                    coalesce(m.payload, holdfast._body(f.queue_id, m.id))) end as to_filters,
            case when l.queue_id is null or l.has_priorities
                then coalesce(m.priority, 2) else 2 end as priority
        from found f
        cross join lateral (  -- of each message the first mention, without a search for it
            select array_agg(x.ord order by x.place) as ords
            from (
                select x.place, min(x.ord) as ord
                from (
                    select u.place, u.ord from unnest(f.places, f.ords) as u (place, ord)
                    where u.place between 1 and cardinality(f.message_ids)
                    union all
                    select g.place, f.all_ord
                    from generate_series(1, cardinality(f.message_ids)) as g (place)
                ) as x
                group by x.place
            ) as x
        ) as o
        cross join lateral unnest(f.message_ids, f.priorities, f.attempts, f.origin_ids,
            f.sent_ats, f.payloads, f.headers, f.errors, o.ords) with ordinality
            as m (id, priority, attempts, origin_id, sent_at, payload, headers, error, ord, place)
        cross join lateral (
            select m.ord, p_delays[m.ord] as delay, p_errors[m.ord] as error,
                coalesce(p_counted[m.ord], true) as counted,
                coalesce(p_discarded[m.ord], false) as discarded
            where m.ord is not null
        ) as a
        left join lateral (
            select q.queue_id, q.has_priorities, q.has_filters from holdfast.queues q
            where (a.discarded or a.counted and m.attempts >= f.max_receives)
                and q.name = f.dead_letters
            limit 1
        ) as l on true
        where m.place <> all (f.done)
    ), plain as (
        insert into holdfast.messages (queue_id, priority, visible_at, message_id, attempts,
            origin_id, sent_at, payload, headers, error)
        select b.to_id, b.priority, case when b.dead_id is null then b.due_at else v_now end, b.id,
            case when b.dead_id is null then b.attempts else 0 end,
            case when b.dead_id is null then b.origin_id else b.queue_id end, b.sent_at, b.payload,
            b.headers, b.error
        from back b where b.group_key is null and not b.to_filters and not b.is_done
    ), filtered as (
        insert into holdfast.filtered_messages (queue_id, priority, visible_at, message_id,
            attempts, origin_id, sent_at, payload, headers, error)
        select b.to_id, b.priority, case when b.dead_id is null then b.due_at else v_now end, b.id,
            case when b.dead_id is null then b.attempts else 0 end,
            case when b.dead_id is null then b.origin_id else b.queue_id end, b.sent_at,
            coalesce(b.payload, holdfast._body(b.queue_id, b.id)), b.headers, b.error
        from back b where b.to_filters and not b.is_done
    ), grouped as (
        insert into holdfast.grouped_messages (queue_id, group_key, message_id, visible_at,
            attempts, origin_id, sent_at, payload, headers, error)
        select b.to_id, b.group_key, b.id, case when b.dead_id is null then b.due_at else v_now end,
            case when b.dead_id is null then b.attempts else 0 end,
            case when b.dead_id is null then b.origin_id else b.queue_id end, b.sent_at, b.payload,
            b.headers, b.error
        from back b where b.group_key is not null and not b.is_done
    ), moved as (
        update holdfast.bodies y set queue_id = b.dead_id from back b
        where b.dead_id is not null and b.payload is null and not b.to_filters
            and y.queue_id = b.queue_id and y.message_id = b.id
    ), unneeded as (
        delete from holdfast.bodies y using back b
        where (b.to_filters or b.is_done) and b.payload is null
            and y.queue_id = b.queue_id and y.message_id = b.id
    ), sums as materialized (
        select b.tid, b.done || array_agg(b.place) as now_done,
            cardinality(b.done) + count(*) >= b.size as is_over
        from back b group by b.tid, b.done, b.size
    ), gone as (
        delete from holdfast.deliveries d where d.ctid = any (array(
            select s.tid from sums s where s.is_over))
        returning d.queue_id, d.group_key
    ), changed as (
        update holdfast.deliveries d set done = s.now_done, more = true from sums s
        where d.ctid = s.tid and not s.is_over
    ), tokens as (
        insert into holdfast.group_tokens (queue_id, visible_at, token_id, group_key)
        select t.queue_id, v_now, holdfast._next_message_id(), t.group_key
        from (
            select g.queue_id, g.group_key from gone g where g.group_key is not null
            union
            select b.dead_id, b.group_key from back b
            where b.dead_id is not null and b.group_key is not null
        ) as t
        returning queue_id
    )
    select array_agg(a.ord in (select b.ord from back b) order by a.ord),
        holdfast._queue_names((
            select array_agg(distinct x.queue_id)
            from (
                select t.queue_id from tokens t
                union all
                select f.queue_id from found f where f.limited
                union all
                select b.to_id from back b
                where b.group_key is null and not b.is_done
                    and (b.dead_id is not null or b.due_at <= v_now)
            ) as x (queue_id))),
        (select array_agg(b.id) from back b where b.is_done)
    into returned, freed, v_done
    from asked a;
    if v_done is not null then
        perform holdfast._drop_failures(v_done);
    end if;
    returned := coalesce(returned, '{}');
end $$;

-- Keep messages that are discarded of queues without dead letters, if their queues keep what is
-- acknowledged.
-- Locks: expects the deliveries locked. Called by return_messages.
create or replace function holdfast._keep_discarded(
    p_queue_ids int[], p_delivery_ids uuid[], p_places int[], p_discarded boolean[]
) returns void
language plpgsql
as $$
begin
    perform holdfast._keep_places(
        array_agg(u.queue_id), array_agg(u.delivery_id), array_agg(u.place))
    from unnest(p_queue_ids, p_delivery_ids, p_places, p_discarded)
        as u (queue_id, delivery_id, place, discarded)
    cross join lateral (
        select q.dead_letters from holdfast.queues q
        where q.queue_id = u.queue_id and q.dead_letters is null limit 1
    ) as q
    where u.discarded;
end $$;

-- Give back what is in flight beyond its visibility, of one queue or of all. Returns how many
-- deliveries.
-- Locks: deliveries, skipping locked ones. Called by receive_messages and return_expired.
create or replace function holdfast._return_expired(
    p_queue_id int, p_now timestamptz, p_limit int
) returns int
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_queue_ids int[];
    v_ids uuid[];
begin
    select array_agg(d.queue_id), array_agg(d.delivery_id) into v_queue_ids, v_ids
    from (
        select d.queue_id, d.delivery_id from holdfast.deliveries d
        where d.visible_at <= p_now and (p_queue_id is null or d.queue_id = p_queue_id)
        order by d.visible_at limit p_limit for update skip locked
    ) as d;
    if v_ids is null then
        return 0;
    end if;
    perform holdfast.return_messages(v_queue_ids, v_ids, null, null,
        array_fill('the visibility timeout ended'::text, array[cardinality(v_ids)]));
    return cardinality(v_ids);
end $$;

-- Give back what is in flight beyond its visibility, of all queues. Returns how many deliveries,
-- and when the next visibility ends.
-- Locks: deliveries, skipping locked ones. Called by maintenance, in any number of processes at
-- once.
create or replace function holdfast.return_expired(
    p_limit int, out returned int, out next_due_at bigint
)
language plpgsql
set enable_bitmapscan = off
as $$
begin
    returned := holdfast._return_expired(null, holdfast.now(), holdfast._limit(p_limit));
    select holdfast._micros(d.visible_at) into next_due_at
    from holdfast.deliveries d order by d.visible_at limit 1;
end $$;

-- Keep deliveries in flight for so long from now. Returns for each whether it is in flight still. A
-- visibility that has ended and was not noticed yet is extended, too. Refuses times that are not
-- allowed (22004, 22023).
-- Locks: deliveries by id. If another transaction has one of them for longer than 50 ms, those that
-- nobody has. Called by users, clients and workers.
create or replace function holdfast.extend_deliveries(
    p_queue_ids int[], p_delivery_ids uuid[], p_seconds float8
) returns boolean[]
language plpgsql
set enable_bitmapscan = off
set lock_timeout = '50ms'
as $$
declare
    v_ids uuid[] := p_delivery_ids;
    v_kept boolean[];
begin
    perform holdfast._check_given('how long to keep messages in flight', p_seconds is not null);
    perform holdfast._check_seconds('the time to keep a message in flight', p_seconds);
    begin
        perform holdfast._lock_deliveries(p_queue_ids, p_delivery_ids);
    exception when lock_not_available then
        v_ids := array(
            select u.delivery_id
            from unnest(p_queue_ids, p_delivery_ids) as u (queue_id, delivery_id)
            cross join lateral (
                select from holdfast.deliveries d
                where d.queue_id = u.queue_id and d.delivery_id = u.delivery_id
                for no key update skip locked
            ) as d);
    end;
    update holdfast.deliveries d
    set visible_at = holdfast.now() + p_seconds * interval '1 second'
    where d.ctid = any (array(
        select d.ctid
        from unnest(p_queue_ids, p_delivery_ids) as u (queue_id, delivery_id)
        cross join lateral (
            select d.ctid from holdfast.deliveries d
            where d.queue_id = u.queue_id and d.delivery_id = u.delivery_id limit 1
        ) as d
        where u.delivery_id = any (v_ids)));
    select array_agg(exists (select from holdfast.deliveries d
        where d.queue_id = u.queue_id and d.delivery_id = u.delivery_id) order by u.place)
    into v_kept
    from unnest(p_queue_ids, p_delivery_ids) with ordinality as u (queue_id, delivery_id, place);
    return coalesce(v_kept, '{}');
end $$;
