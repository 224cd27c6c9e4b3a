-- Look at the messages of a queue page by page.

-- Return messages of a queue without receiving them, from after a place on: first what waits, in
-- the order of receives, of a FIFO queue group by group; then what is in flight. A page reads
-- p_limit rows and no more. Payloads are texts, of p_clip characters if it is given; with p_origin
-- those of other queues' dead letters are empty. `place` continues after a message.
-- Refuses an unknown queue (HFQ01), a limit below 0 and a place that no page gave (22023). Locks
-- nothing. Called by clients.
create or replace function holdfast.message_page(
    p_queue text, p_limit int, p_after text[] default null, p_clip int default null,
    p_origin text default null
)
returns table (
    message_id bigint, in_flight boolean, group_key text, priority int, attempts int,
    visible_at bigint, sent_at bigint, origin text, payload text, headers json, error text,
    place text[]
)
language plpgsql stable
set enable_bitmapscan = off
as $$
declare
    v_id int := (holdfast._queue(p_queue)).queue_id;
    v_limit int := holdfast._limit(p_limit);
    v_after text[] := holdfast._check_place(p_after);
    v_flying boolean := coalesce(v_after[1]::boolean, false);
    v_priority smallint := coalesce(p_after[2]::smallint, -1);
    v_visible timestamptz := coalesce(holdfast._moment(p_after[3]::bigint), '-infinity');
    v_group text := case when v_flying then null else coalesce(p_after[4], '') end;
    v_delivery uuid := case when v_flying then p_after[4] else
        '00000000-0000-0000-0000-000000000000' end;
    v_number bigint := coalesce(p_after[5]::bigint, -1);
    v_last bigint := case when v_flying then v_number else -1 end;
begin
    return query
    select m.message_id, m.in_flight, m.group_key, m.priority, m.attempts,
        holdfast._micros(m.visible_at), holdfast._micros(m.sent_at), q.name,
        case when q.name is distinct from p_origin and p_origin is not null or p_clip = 0 then ''
            else left(coalesce(m.payload, holdfast._body(v_id, m.message_id))::text,
                coalesce(p_clip, 2147483647)) end,
        m.headers, m.error,
        array[m.in_flight::text, m.k1::text, holdfast._micros(m.k2)::text, m.k3, m.k4::text]
    from (
        select * from (
            (select m.message_id, false as in_flight, null::text as group_key,
                m.priority::int % 8 as priority, m.attempts, m.visible_at, m.sent_at, m.origin_id,
                m.payload, m.headers, m.error,
                m.priority as k1, m.visible_at as k2, null::text collate "C" as k3,
                m.message_id as k4
            from holdfast.messages m
            where not v_flying and m.queue_id = v_id
                and (m.priority, m.visible_at, m.message_id) > (v_priority, v_visible, v_number)
            order by m.priority, m.visible_at, m.message_id limit v_limit)
            union all
            (select m.message_id, false, null, m.priority % 8, m.attempts, m.visible_at, m.sent_at,
                m.origin_id, m.payload, m.headers, m.error,
                m.priority, m.visible_at, null, m.message_id
            from holdfast.filtered_messages m
            where not v_flying and m.queue_id = v_id
                and (m.priority, m.visible_at, m.message_id) > (v_priority, v_visible, v_number)
            order by m.priority, m.visible_at, m.message_id limit v_limit)
            union all
            (select m.message_id, false, m.group_key, 2, m.attempts, m.visible_at, m.sent_at,
                m.origin_id, m.payload, m.headers, m.error,
                null, null, m.group_key, m.message_id
            from holdfast.grouped_messages m
            where not v_flying and m.queue_id = v_id
                and (m.group_key, m.message_id) > (v_group, v_number)
            order by m.group_key, m.message_id limit v_limit)
            union all
            (select m.id, true, d.group_key, coalesce(m.priority, 2), m.attempts, d.visible_at,
                m.sent_at, m.origin_id, m.payload, m.headers, m.error,
                null, null, d.delivery_id::text, m.place
            from (
                select * from holdfast.deliveries d
                where d.queue_id = v_id and d.delivery_id >= v_delivery
                order by d.delivery_id limit v_limit + 1::bigint
            ) as d
            cross join lateral unnest(d.message_ids, d.priorities, d.attempts, d.origin_ids,
                d.sent_ats, d.payloads, d.headers, d.errors) with ordinality
                as m (id, priority, attempts, origin_id, sent_at, payload, headers, error, place)
            where m.place <> all (coalesce(d.done, '{}'))
                and (d.delivery_id > v_delivery or m.place > v_last))
        ) as m
        order by m.in_flight, m.k1, m.k2, m.k3, m.k4
        limit v_limit
    ) as m
    left join holdfast.queues q on q.queue_id = m.origin_id
    order by m.in_flight, m.k1, m.k2, m.k3, m.k4;
end $$;

-- Return the place of a message, as message_page gave it. Refuses another one (22023). Called by
-- message_page.
create or replace function holdfast._check_place(p_after text[]) returns text[]
language plpgsql immutable
as $$
begin
    perform p_after[1]::boolean, p_after[2]::smallint, p_after[5]::bigint,
        holdfast._check_moment('a place', p_after[3]::bigint),
        case when p_after[1]::boolean then p_after[4]::uuid end;
    return p_after;
exception when data_exception then
    raise invalid_parameter_value using message = format(
        'p_after is the place of a message, as an earlier page gave it, not %s',
        left(p_after::text, 200));
end $$;
