-- Limits of message queues with a key: which messages they allow, and what is passed over.

-- Return the places of the messages that limits with a key allow together, in the order given, and
-- when rates allow more. With several such limits they may be fewer than would be allowed, but not
-- none.
-- Locks: expects the limits locked. Called by _take_by_key and _groups_by_key.
create or replace function holdfast._within_keys(
    p_queue_id int, p_queue text, p_now timestamptz, p_payloads json[],
    out places int[], out next_at timestamptz
)
language plpgsql stable
set enable_nestloop = on
as $$
begin
    with limits as materialized (
        select * from holdfast._message_limits(p_queue) as l where l.key <> ''
    ), slots as materialized (
        select l.limit_id, u.place::int as place, holdfast._slot_of(u.payload, l.key) as slot
        from limits l
        cross join unnest(p_payloads) with ordinality as u (payload, place)
    ), held as materialized (
        select l.limit_id, holdfast._slot_of(m.payload, l.key) as slot, count(*)::int as count
        from limits l
        cross join holdfast._payloads_in_flight(p_queue_id) as m (payload)
        where l.kind = 'concurrency'
        group by 1, 2
    ), free as materialized (
        select s.limit_id, s.slot, r.next_at, case l.kind
            when 'concurrency' then l.most - coalesce(h.count, 0) else r.free end as free
        from (select distinct s.limit_id, s.slot from slots s) as s
        join limits l using (limit_id)
        left join held h using (limit_id, slot)
        left join lateral (  -- a condition of the join would not keep the call from being made
            select r.free, r.next_at
            from holdfast._rate_left(
                p_now, -s.limit_id, s.slot, l.most, l.period, l.smooth) as r
            where l.kind = 'rate' limit 1
        ) as r on true
    ), judged as materialized (
        select s.limit_id, s.slot, s.place, f.free,
            bool_and(f.free > 0) over (partition by s.place) as is_open
        from slots s join free f using (limit_id, slot)
    )
    select (
        select array_agg(r.place order by r.place)
        from (
            select n.place
            from (
                select j.place, j.free, row_number() over (
                    partition by j.limit_id, j.slot order by j.place) as nth
                from judged j where j.is_open
            ) as n
            group by n.place having bool_and(n.nth <= n.free)
        ) as r), (select min(f.next_at) from free f)
    into places, next_at;
end $$;

-- Return the payloads of what is in flight of a queue. Called by _within_keys and
-- _messages_of_limit.
create or replace function holdfast._payloads_in_flight(p_queue_id int) returns setof json
language plpgsql stable
as $$
begin
    return query
    select coalesce(m.payload, holdfast._body(p_queue_id, m.id))
    from holdfast.deliveries d
    cross join lateral unnest(d.message_ids, d.payloads) with ordinality as m (id, payload, place)
    where d.queue_id = p_queue_id and m.place <> all (coalesce(d.done, '{}'));
end $$;

-- Take messages of a queue that is not FIFO as limits with a key allow, the most urgent first. What
-- they do not allow is passed over, and keeps its place: among the first 10,000 that are due and
-- meet the condition p_contains.
-- Locks: expects the limits locked; messages, skipping locked ones. Called by receive_messages.
create or replace function holdfast._take_by_key(
    p_queue_id int, p_queue text, p_now timestamptz, p_limit int, p_contains json,
    out message_ids bigint[], out priorities smallint[], out attempts int[],
    out origin_ids int[], out sent_ats timestamptz[], out payloads json[], out headers json[],
    out errors text[], out has_bodies boolean, out next_at timestamptz
)
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_contains jsonb := p_contains;
    v_size int := greatest(64, 2 * p_limit);
    v_looked int := 0;
    v_priority int := 0;  -- of the last that was looked at
    v_at timestamptz := '-infinity';
    v_id bigint := 0;
    v_found record;
    v_within record;
begin
    loop
        select array_agg(c.tid) as tids, array_agg(c.message_id) as ids,
            array_agg(c.priority) as priorities, array_agg(c.visible_at) as ats,
            array_agg(coalesce(c.payload, holdfast._body(p_queue_id, c.message_id))) as payloads,
            count(*)::int as count
        into v_found
        from (
            select m.*
            from generate_series(v_priority, 4) as l (priority)
            cross join lateral (
                select case when l.priority = v_priority then v_at else '-infinity' end as at,
                    case when l.priority = v_priority then v_id else 0 end as id
            ) as a
            cross join lateral (
                (select m.ctid as tid, m.priority, m.visible_at, m.message_id, m.payload
                from holdfast.messages m
                where m.queue_id = p_queue_id and m.priority = l.priority and m.visible_at <= p_now
                    and (m.visible_at, m.message_id) > (a.at, a.id)
                order by m.visible_at, m.message_id limit v_size)
                union all
                (select m.ctid, m.priority, m.visible_at, m.message_id, m.payload
                from holdfast.filtered_messages m
                where m.queue_id = p_queue_id and m.priority = l.priority and m.visible_at <= p_now
                    and (m.visible_at, m.message_id) > (a.at, a.id)
                    and (v_contains is null or m.payload::jsonb @> v_contains)
                order by m.visible_at, m.message_id limit v_size)
            ) as m
            order by m.priority, m.visible_at, m.message_id
            limit v_size
        ) as c;
        exit when v_found.count = 0;
        v_within := holdfast._within_keys(p_queue_id, p_queue, p_now, v_found.payloads);
        next_at := least(next_at, v_within.next_at);
        select t.* into message_ids, priorities, attempts, origin_ids, sent_ats, payloads, headers,
            errors, has_bodies
        from holdfast._take_places(p_queue_id, v_found.tids, v_found.ids,
            v_within.places[1:p_limit]) as t;
        v_looked := v_looked + v_found.count;
        exit when message_ids is not null or v_found.count < v_size or v_looked >= 10000;
        v_priority := v_found.priorities[v_found.count];
        v_at := v_found.ats[v_found.count];
        v_id := v_found.ids[v_found.count];
        v_size := least(4 * v_size, 4096);
    end loop;
end $$;

-- Take messages by their places in these arrays. A row that has become another message's, or that
-- is locked, is left.
-- Locks: messages, skipping locked ones. Called by _take_by_key.
create or replace function holdfast._take_places(
    p_queue_id int, p_tids tid[], p_ids bigint[], p_places int[],
    out message_ids bigint[], out priorities smallint[], out attempts int[],
    out origin_ids int[], out sent_ats timestamptz[], out payloads json[], out headers json[],
    out errors text[], out has_bodies boolean
)
language plpgsql
set enable_bitmapscan = off
as $$
begin
    with plain as (
        delete from holdfast.messages m where m.ctid = any (array(
            select m.tid from unnest(p_places) as u (place)
            cross join lateral (
                select m.ctid as tid from holdfast.messages m
                where m.ctid = p_tids[u.place] and m.queue_id = p_queue_id
                    and m.message_id = p_ids[u.place]
                for update skip locked
            ) as m))
        returning m.*
    ), filtered as (
        delete from holdfast.filtered_messages m where m.ctid = any (array(
            select m.tid from unnest(p_places) as u (place)
            cross join lateral (
                select m.ctid as tid from holdfast.filtered_messages m
                where m.ctid = p_tids[u.place] and m.queue_id = p_queue_id
                    and m.message_id = p_ids[u.place]
                for update skip locked
            ) as m))
        returning m.*
    )
    select array_agg(t.message_id), array_agg(t.priority), array_agg(t.attempts + 1),
        case when count(t.origin_id) > 0 then array_agg(t.origin_id) end,
        array_agg(t.sent_at), array_agg(t.payload),
        case when count(t.headers) > 0 then array_agg(t.headers) end,
        case when count(t.error) > 0 then array_agg(t.error) end, count(*) > count(t.payload)
    into message_ids, priorities, attempts, origin_ids, sent_ats, payloads, headers, errors,
        has_bodies
    from (
        select * from (select * from plain union all select * from filtered) as t
        order by t.priority, t.visible_at, t.message_id
    ) as t;
end $$;

-- Return up to p_limit groups of a FIFO queue whose first messages are due and allowed by limits
-- with a key, and when rates allow more. Groups in flight are passed over, and so are those that
-- others have: among the first 10,000 tokens. The first messages are locked, so that nobody changes
-- or cancels them before they are taken.
-- Locks: expects the limits locked; messages, skipping locked ones. Called by _receive_limited.
create or replace function holdfast._groups_by_key(
    p_queue_id int, p_queue text, p_now timestamptz, p_limit int,
    out groups text[], out next_at timestamptz
)
language plpgsql
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_size int := greatest(64, 2 * p_limit);
    v_looked int := 0;
    v_at timestamptz := '-infinity';
    v_id bigint := 0;
    v_tokens record;
    v_found record;
    v_within record;
begin
    loop
        select array_agg(t.group_key) as groups, max(t.visible_at) as at,
            (array_agg(t.token_id))[count(*)] as id, count(*)::int as count
        into v_tokens
        from (
            select t.group_key, t.visible_at, t.token_id from holdfast.group_tokens t
            where t.queue_id = p_queue_id and t.visible_at <= p_now
                and (t.visible_at, t.token_id) > (v_at, v_id)
            order by t.visible_at, t.token_id limit v_size
        ) as t;
        exit when v_tokens.count = 0;
        select array_agg(g.group_key order by g.place) as groups,
            array_agg(coalesce(m.payload, holdfast._body(p_queue_id, m.message_id))
                order by g.place) as payloads
        into v_found
        from (
            select u.group_key, min(u.place) as place
            from unnest(v_tokens.groups) with ordinality as u (group_key, place) group by 1
        ) as g
        cross join lateral (
            select m.ctid as tid from holdfast.grouped_messages m
            where m.queue_id = p_queue_id and m.group_key = g.group_key
            order by m.message_id limit 1
        ) as f
        cross join lateral (
            select m.message_id, m.payload from holdfast.grouped_messages m
            where m.ctid = f.tid and m.visible_at <= p_now
            for update skip locked
        ) as m
        where not exists (
            select from holdfast.deliveries d
            where d.queue_id = p_queue_id and d.group_key = g.group_key);
        if v_found.groups is not null then
            v_within := holdfast._within_keys(p_queue_id, p_queue, p_now, v_found.payloads);
            next_at := least(next_at, v_within.next_at);
            groups := array(select v_found.groups[u.place]
                from unnest(v_within.places[1:p_limit]) as u (place));
        end if;
        v_looked := v_looked + v_tokens.count;
        exit when groups <> '{}' or v_tokens.count < v_size or v_looked >= 10000;
        v_at := v_tokens.at;
        v_id := v_tokens.id;
        v_size := least(4 * v_size, 4096);
    end loop;
end $$;
