-- Limits of message queues with a key: which messages they allow, and what they hold up.
--
-- Receives read the front of a queue. What a limit holds up there they move out of the way, to a
-- priority that is 8 higher, and remember its place by the values of its keys, in limited_messages.
-- From there it is taken when there is room, in its order: a receive reads the first messages of
-- each value that has room, and what has come since.

-- Return which limits with a key a message of a queue waits for, with the values of their keys, for
-- each of these payloads: {"limit_id": "value"}. Called by _groups_by_key and _hold_up.
create or replace function holdfast._message_keys(p_queue text, p_payloads json[]) returns text[]
language plpgsql stable
as $$
begin
    return array(
        select jsonb_object_agg(l.limit_id, holdfast._slot_of(u.payload, l.key))::text
        from (
            select unnest(p_payloads) as payload, generate_subscripts(p_payloads, 1) as place
        ) as u
        cross join (
            select l.limit_id, l.key from holdfast._message_limits(p_queue) as l
            where l.key <> '' offset 0
        ) as l
        group by u.place
        order by u.place);
end $$;

-- Return the places of the messages, by the values of their keys, that limits allow: `possible` are
-- all of which one more is allowed, `places` those that are allowed together, in the order given.
-- With several limits these may be fewer than would be allowed, but not none. `waits` is until when
-- rates allow none of each of those given, null if they do; `next_at` is the first time that one
-- allows more.
-- Locks: expects the limits locked. Called by _allowed_groups, _groups_by_key, _hold_up and
-- _take_by_key.
create or replace function holdfast._within_keys(
    p_queue_id int, p_queue text, p_now timestamptz, p_keys text[],
    out possible int[], out places int[], out waits timestamptz[], out next_at timestamptz
)
language plpgsql stable
as $$
begin
    with limits as materialized (
        select * from holdfast._message_limits(p_queue) as l where l.key <> ''
    ), slots as materialized (
        select k.key::int as limit_id, u.place::int as place, k.value as slot
        from unnest(p_keys) with ordinality as u (limit_keys, place)
        cross join lateral jsonb_each_text(u.limit_keys::jsonb) as k
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
        select s.limit_id, s.slot, s.place, f.free, f.next_at,
            bool_and(f.free > 0) over (partition by s.place) as is_open
        from slots s join free f using (limit_id, slot)
    ), ranked as materialized (
        select n.place, bool_and(n.nth <= n.free) as fits
        from (
            select j.place, j.free, row_number() over (
                partition by j.limit_id, j.slot order by j.place) as nth
            from judged j where j.is_open
        ) as n
        group by n.place
    )
    select array_agg(r.place order by r.place),
        array_agg(r.place order by r.place) filter (where r.fits),
        array(select max(j.next_at) filter (where j.free <= 0) from judged j
            group by j.place order by j.place),
        (select min(f.next_at) from free f)
    into possible, places, waits, next_at
    from ranked r;
end $$;

-- Take messages of a queue that is not FIFO as limits with a key allow, the most urgent first. With
-- a condition p_contains, it is met by them: among the first 1,000 of each value of the keys.
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
    v_open record;
    v_groups text[];
    v_new record;
    v_old record;
    v_within record;
    v_places int[];
begin
    v_open := holdfast._allowed_groups(
        p_queue_id, p_queue, p_now, case when p_contains is null then p_limit end);
    select h.* into v_new
    from holdfast._hold_up(p_queue_id, p_queue, p_now, p_limit, p_contains) as h;
    next_at := least(v_new.next_at, v_open.next_at);
    -- What came after them must not pass those that wait with the same values.
    v_groups := array(select unnest(v_open.groups) union select unnest(v_new.keys));
    loop
        select array_agg(m.tid) as tids, array_agg(k.message_id) as ids,
            array_agg(k.limit_keys) as keys, array_agg(k.priority) as priorities,
            array_agg(k.visible_at) as ats, array_agg(k.tid) filter (where m.tid is null) as stale
        into v_old
        from unnest(v_groups) as u (limit_keys)
        cross join lateral (
            select k.ctid as tid, k.* from holdfast.limited_messages k
            where k.queue_id = p_queue_id and k.limit_keys = u.limit_keys
            order by k.priority, k.visible_at, k.message_id
            limit case when p_contains is null then p_limit else 1000 end
        ) as k
        left join lateral (
            select m.ctid as tid, null::json as payload from holdfast.messages m
            where m.queue_id = p_queue_id and m.priority = k.priority + 8
                and m.visible_at = k.visible_at and m.message_id = k.message_id
            union all
            select m.ctid, m.payload from holdfast.filtered_messages m
            where m.queue_id = p_queue_id and m.priority = k.priority + 8
                and m.visible_at = k.visible_at and m.message_id = k.message_id
        ) as m on true
        where m.tid is null or p_contains is null or m.payload::jsonb @> p_contains::jsonb;
        exit when v_old.stale is null;
        delete from holdfast.limited_messages k where k.ctid = any (v_old.stale);
        next_at := p_now;  -- there may be others
    end loop;
    if v_old.ids is not null then
        select array_agg(u.tid order by u.priority, u.at, u.id) as tids,
            array_agg(u.id order by u.priority, u.at, u.id) as ids,
            array_agg(u.limit_keys order by u.priority, u.at, u.id) as keys, 2 as parts
        into v_new
        from (
            select * from unnest(v_old.tids, v_old.ids, v_old.keys, v_old.priorities, v_old.ats)
            union all
            select * from unnest(v_new.tids, v_new.ids, v_new.keys, v_new.priorities, v_new.ats)
        ) as u (tid, id, limit_keys, priority, at);
    end if;
    v_places := array(select generate_series(1, p_limit));  -- more than there are does no harm
    if v_new.parts > 1 then
        v_within := holdfast._within_keys(p_queue_id, p_queue, p_now, v_new.keys);
        v_places := v_within.places[1:p_limit];
    end if;
    select t.* into message_ids, priorities, attempts, origin_ids, sent_ats, payloads, headers,
        errors, has_bodies
    from holdfast._take_places(
        p_queue_id, v_new.tids, v_new.ids, v_new.keys, v_places) as t;
end $$;

-- Read the front of a queue, up to p_limit messages that limits with a key allow; those that are
-- due there and have no room wait for their limits from then on. Returns the places of the first
-- ones, with the values of their keys, and when rates allow more. They were read in so many
-- `parts`: if it is one, they are allowed together. With a condition p_contains they meet it.
-- Locks: expects the limits locked; messages, skipping locked ones. Called by _take_by_key.
create or replace function holdfast._hold_up(
    p_queue_id int, p_queue text, p_now timestamptz, p_limit int, p_contains json,
    out tids tid[], out ids bigint[], out keys text[], out priorities smallint[],
    out ats timestamptz[], out next_at timestamptz, out parts int
)
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_contains jsonb := p_contains;
    v_size int := greatest(16, 2 * p_limit);
    v_found record;
    v_within record;
    v_priority int := 0;  -- of the last that was looked at
    v_at timestamptz := '-infinity';
    v_id bigint := 0;
begin
    for v_pass in 1 .. 7 loop
        parts := v_pass + (v_contains is not null)::int;
        select array_agg(c.tid) as tids, array_agg(c.message_id) as ids,
            array_agg(c.priority) as priorities, array_agg(c.visible_at) as ats,
            holdfast._message_keys(p_queue, array_agg(
                coalesce(c.payload, holdfast._body(p_queue_id, c.message_id)))) as keys,
            array_agg(c.meets) as meet, count(*)::int as count
        into v_found
        from (
            select m.*
            from generate_series(v_priority, 4) as l (priority)
            cross join lateral (
                select case when l.priority = v_priority then v_at else '-infinity' end as at,
                    case when l.priority = v_priority then v_id else 0 end as id
            ) as a
            cross join lateral (
                (select m.ctid as tid, m.priority, m.visible_at, m.message_id, m.payload,
                    true as meets
                from holdfast.messages m
                where m.queue_id = p_queue_id and m.priority = l.priority and m.visible_at <= p_now
                    and (m.visible_at, m.message_id) > (a.at, a.id)
                order by m.visible_at, m.message_id limit v_size)
                union all
                (select m.ctid, m.priority, m.visible_at, m.message_id, m.payload,
                    v_contains is null or m.payload::jsonb @> v_contains
                from holdfast.filtered_messages m
                where m.queue_id = p_queue_id and m.priority = l.priority and m.visible_at <= p_now
                    and (m.visible_at, m.message_id) > (a.at, a.id)
                order by m.visible_at, m.message_id limit v_size)
            ) as m
            order by m.priority, m.visible_at, m.message_id
            limit v_size
        ) as c;
        exit when v_found.count = 0;
        v_within := holdfast._within_keys(p_queue_id, p_queue, p_now, v_found.keys);
        next_at := least(next_at, v_within.next_at);
        perform holdfast._set_aside(p_queue_id, v_found.tids, v_found.ids, v_found.keys,
            array(select u.place from generate_series(1, v_found.count) as u (place)
                where u.place <> all (coalesce(v_within.possible, '{}'))));
        select tids || array_agg(v_found.tids[u.place]), ids || array_agg(v_found.ids[u.place]),
            keys || array_agg(v_found.keys[u.place]),
            priorities || array_agg(v_found.priorities[u.place]),
            ats || array_agg(v_found.ats[u.place])
        into tids, ids, keys, priorities, ats
        from unnest(case when v_contains is null then v_within.places else v_within.possible end)
            as u (place)
        where v_found.meet[u.place];
        exit when cardinality(ids) >= p_limit or v_found.count < v_size;
        v_priority := v_found.priorities[v_found.count];
        v_at := v_found.ats[v_found.count];
        v_id := v_found.ids[v_found.count];
        v_size := least(4 * v_size, 4096);
        if v_pass = 7 then
            next_at := p_now;  -- the next receive reads on
        end if;
    end loop;
end $$;

-- Move messages out of the way of receives, by their places in these arrays, and remember them by
-- the values of their keys. One that is locked, or has gone, is left.
-- Locks: messages, skipping locked ones. Called by _hold_up.
create or replace function holdfast._set_aside(
    p_queue_id int, p_tids tid[], p_ids bigint[], p_keys text[], p_places int[]
) returns void
language plpgsql
set enable_bitmapscan = off
as $$
begin
    with plain as (
        update holdfast.messages m set priority = m.priority + 8
        from (
            select m.tid, u.place from unnest(p_places) as u (place)
            cross join lateral (
                select m.ctid as tid from holdfast.messages m
                where m.ctid = p_tids[u.place] and m.queue_id = p_queue_id
                    and m.message_id = p_ids[u.place]
                for update skip locked
            ) as m
        ) as u
        where m.ctid = u.tid
        returning u.place, m.priority, m.visible_at, m.message_id
    ), filtered as (
        update holdfast.filtered_messages m set priority = m.priority + 8
        from (
            select m.tid, u.place from unnest(p_places) as u (place)
            cross join lateral (
                select m.ctid as tid from holdfast.filtered_messages m
                where m.ctid = p_tids[u.place] and m.queue_id = p_queue_id
                    and m.message_id = p_ids[u.place]
                for update skip locked
            ) as m
        ) as u
        where m.ctid = u.tid
        returning u.place, m.priority, m.visible_at, m.message_id
    ), moved as (
        select * from plain union all select * from filtered
    ), groups as (
        insert into holdfast.limited_groups (queue_id, limit_keys, allowed_at)
        select distinct p_queue_id, p_keys[m.place], '-infinity'::timestamptz from moved m
        on conflict do nothing
    )
    insert into holdfast.limited_messages (queue_id, limit_keys, priority, visible_at, message_id)
    select p_queue_id, p_keys[u.place], u.priority - 8, u.visible_at, u.message_id
    from moved u
    on conflict do nothing;
end $$;

-- Take messages by their places in these arrays. A row that has become another message's, or that
-- is locked, is left.
-- Locks: messages, skipping locked ones. Called by _take_by_key.
create or replace function holdfast._take_places(
    p_queue_id int, p_tids tid[], p_ids bigint[], p_keys text[], p_places int[],
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
    ), taken as (
        select t.*, t.priority % 8::smallint as own
        from (select * from plain union all select * from filtered) as t
    ), forgotten as (
        delete from holdfast.limited_messages k
        using taken t, unnest(p_ids, p_keys) as u (id, limit_keys)
        where t.priority >= 8 and u.id = t.message_id and k.queue_id = p_queue_id
            and k.limit_keys = u.limit_keys and k.priority = t.own
            and k.visible_at = t.visible_at and k.message_id = t.message_id
    )
    select array_agg(t.message_id), array_agg(t.own), array_agg(t.attempts + 1),
        case when count(t.origin_id) > 0 then array_agg(t.origin_id) end,
        array_agg(t.sent_at), array_agg(t.payload),
        case when count(t.headers) > 0 then array_agg(t.headers) end,
        case when count(t.error) > 0 then array_agg(t.error) end, count(*) > count(t.payload)
    into message_ids, priorities, attempts, origin_ids, sent_ats, payloads, headers, errors,
        has_bodies
    from (select * from taken t order by t.own, t.visible_at, t.message_id) as t;
end $$;
