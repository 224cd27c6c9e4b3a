-- Acknowledge messages.

-- Acknowledge all that is left of deliveries of one queue. Returns for each whether it was in
-- flight still, and whether a group, or a limit, has more to give now.
-- Locks: deliveries by id. Called by users and clients, in any transaction.
create or replace function holdfast.ack_deliveries(
    p_queue_id int, p_delivery_ids uuid[], out acked boolean[], out freed boolean
)
language plpgsql
set enable_bitmapscan = off
as $$
begin
    select a.acked, a.freed into acked, freed from holdfast._ack(p_queue_id, p_delivery_ids) as a;
end $$;

-- The same, with the settings of its callers: setting them again would cost what is saved.
-- Locks: deliveries by id. Called by ack_deliveries, pop_messages and receive_messages.
create or replace function holdfast._ack(
    p_queue_id int, p_delivery_ids uuid[], out acked boolean[], out freed boolean
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_group text;
    v_limited boolean;
    v_ids uuid[];
    v_special holdfast.deliveries[];
begin
    if cardinality(p_delivery_ids) = 1 then
        delete from holdfast.deliveries d
        where d.queue_id = p_queue_id and d.delivery_id = p_delivery_ids[1]
        returning d.more, d.group_key, d.limited,
            case when d.has_bodies or d.keeps or d.errors is not null then array[d] end
        into freed, v_group, v_limited, v_special;
        acked := array[found];
        if freed and v_group is not null then
            insert into holdfast.group_tokens (queue_id, visible_at, token_id, group_key)
            values (p_queue_id, holdfast.now(), holdfast._next_message_id(), v_group);
        end if;
        if v_limited then
            freed := true;
        end if;
    else
        -- Locked in a statement of its own: one that waited would not see a row's new place.
        perform from (select u.id from unnest(p_delivery_ids) as u (id) order by u.id) as u
        cross join lateral (
            select from holdfast.deliveries d
            where d.queue_id = p_queue_id and d.delivery_id = u.id for update
        ) as d;
        with gone as (
            delete from holdfast.deliveries d where d.ctid = any (array(
                select f.ctid from unnest(p_delivery_ids) as u (id)
                cross join lateral (
                    select d.ctid from holdfast.deliveries d
                    where d.queue_id = p_queue_id and d.delivery_id = u.id limit 1
                ) as f))
            returning d.delivery_id, d.more and d.group_key is not null as more, d.group_key,
                d.limited, d.has_bodies or d.keeps or d.errors is not null as is_special, d as whole
        ), tokens as (
            insert into holdfast.group_tokens (queue_id, visible_at, token_id, group_key)
            select p_queue_id, holdfast.now(), holdfast._next_message_id(), g.group_key
            from gone g where g.more
        )
        select array_agg(g.delivery_id), array_agg(g.whole) filter (where g.is_special),
            bool_or(g.more or g.limited is true)
        into v_ids, v_special, freed from gone g;
        if cardinality(v_ids) = cardinality(p_delivery_ids) then
            acked := array_fill(true, array[cardinality(v_ids)]);
        else
            acked := array(select u.id = any (coalesce(v_ids, '{}'))
                from unnest(p_delivery_ids) with ordinality as u (id, place) order by u.place);
        end if;
    end if;
    if v_special is not null then
        perform holdfast._after_ack(v_special);
    end if;
end $$;

-- Keep what deliveries that were acknowledged had, if their queues keep it, and delete their
-- bodies and errors. Called by _ack.
create or replace function holdfast._after_ack(p_gone holdfast.deliveries[]) returns void
language plpgsql
as $$
begin
    insert into holdfast.kept_messages (queue_id, message_id, acked_at, delete_after, attempts,
        sent_at, group_key, payload, headers)
    select g.queue_id, m.id, holdfast.now(),
        holdfast.now() + q.keep_seconds * interval '1 second', m.attempts, m.sent_at, g.group_key,
        coalesce(m.payload, holdfast._body(g.queue_id, m.id)), m.headers
    from unnest(p_gone) as g
    join holdfast.queues q on q.queue_id = g.queue_id and q.keep_seconds is not null
    cross join lateral unnest(g.message_ids, g.attempts, g.sent_ats, g.payloads, g.headers)
        with ordinality as m (id, attempts, sent_at, payload, headers, place)
    where g.keeps and m.place <> all (coalesce(g.done, '{}'))
    on conflict do nothing;
    delete from holdfast.bodies b using (
        select g.queue_id, i.message_id
        from unnest(p_gone) as g
        cross join lateral unnest(g.message_ids, g.payloads)
            with ordinality as i (message_id, payload, place)
        where g.has_bodies and i.payload is null and i.place <> all (coalesce(g.done, '{}'))
    ) as g
    where b.queue_id = g.queue_id and b.message_id = g.message_id;
    perform holdfast._drop_failures(array_agg(i.message_id))
    from unnest(p_gone) as g
    cross join lateral unnest(g.message_ids) with ordinality as i (message_id, place)
    where g.errors is not null and i.place <> all (coalesce(g.done, '{}'));
end $$;

-- Acknowledge messages one by one: places of deliveries, or with a null place all that is left of
-- one. Returns for each whether it was in flight still; freed are queues where a group, or a limit,
-- has more to give now.
-- Locks: deliveries by id. Called by users and clients, in any transaction.
create or replace function holdfast.ack_messages(
    p_queue_ids int[], p_delivery_ids uuid[], p_places int[],
    out acked boolean[], out freed text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_failed bigint[];
begin
    perform holdfast._lock_deliveries(p_queue_ids, p_delivery_ids);
    if exists (select from holdfast.queues q
        where q.keep_seconds is not null and q.queue_id = any (p_queue_ids))
    then
        perform holdfast._keep_places(p_queue_ids, p_delivery_ids, p_places);
    end if;
    select a.acked, holdfast._queue_names(a.freed), a.failed into acked, freed, v_failed
    from holdfast._ack_places(p_queue_ids, p_delivery_ids, p_places) as a;
    if v_failed is not null then
        perform holdfast._drop_failures(v_failed);
    end if;
end $$;

-- Return the names of queues; null for none. Called by ack_messages and return_messages.
create or replace function holdfast._queue_names(p_queue_ids int[]) returns text[]
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    if p_queue_ids is null then
        return null;
    end if;
    return array(select q.name from holdfast.queues q where q.queue_id = any (p_queue_ids)
        order by q.name);
end $$;

-- Acknowledge places of deliveries; see ack_messages. `failed` are messages that may have errors.
-- Locks: expects the deliveries locked. Called by ack_messages.
create or replace function holdfast._ack_places(
    p_queue_ids int[], p_delivery_ids uuid[], p_places int[],
    out acked boolean[], out freed int[], out failed bigint[]
)
language plpgsql
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    with asked as materialized (
        select u.queue_id, u.delivery_id, u.place, u.ord,
            row_number() over (
                partition by u.queue_id, u.delivery_id, u.place order by u.ord) as mention
        from unnest(p_queue_ids, p_delivery_ids, p_places) with ordinality
            as u (queue_id, delivery_id, place, ord)
    ), found as materialized (
        select d.ctid as tid, d.queue_id, d.has_bodies, d.message_ids,
            coalesce(d.done, '{}') as done, d.errors is not null as has_errors, d.limited,
            a.places, a.ords
        from (
            select a.queue_id, a.delivery_id, array_agg(a.place) as places,
                array_agg(a.ord) as ords
            from asked a where a.mention = 1 group by a.queue_id, a.delivery_id
        ) as a
        cross join lateral (
            select d.ctid, d.* from holdfast.deliveries d
            where d.queue_id = a.queue_id and d.delivery_id = a.delivery_id limit 1
        ) as d
    ), sums as materialized (
        select f.tid, f.queue_id, f.has_bodies, f.has_errors, f.limited, f.done,
            f.done || s.places as now_done, s.acked,
            s.all_of_it or cardinality(f.done) + cardinality(s.places)
                >= cardinality(f.message_ids) as is_over,
            array(select f.message_ids[x.place] from unnest(
                case when s.all_of_it then array(select generate_series(
                    1, cardinality(f.message_ids))) else s.places end) as x (place)
                where x.place <> all (f.done)) as ids
        from found f
        cross join lateral (
            select coalesce(array_agg(u.place) filter (where u.place is not null), '{}') as places,
                coalesce(bool_or(u.place is null), false) as all_of_it, array_agg(u.ord) as acked
            from unnest(f.places, f.ords) as u (place, ord)
            where u.place is null or (u.place between 1 and cardinality(f.message_ids)
                and u.place <> all (f.done))
        ) as s
    ), gone as (
        delete from holdfast.deliveries d where d.ctid = any (array(
            select s.tid from sums s where s.is_over))
        returning d.queue_id, d.group_key, d.more
    ), changed as (
        update holdfast.deliveries d set done = s.now_done from sums s
        where d.ctid = s.tid and not s.is_over and s.now_done <> s.done
    ), tokens as (
        insert into holdfast.group_tokens (queue_id, visible_at, token_id, group_key)
        select g.queue_id, holdfast.now(), holdfast._next_message_id(), g.group_key
        from gone g where g.more and g.group_key is not null
        returning queue_id
    ), bodies as (
        delete from holdfast.bodies b using sums s
        where s.has_bodies and b.queue_id = s.queue_id and b.message_id = any (s.ids)
    )
    select array_agg(
            a.ord in (select u.ord from sums s, unnest(s.acked) as u (ord)) order by a.ord), (
            select array_agg(distinct f.queue_id)
            from (
                select t.queue_id from tokens t
                union all
                select s.queue_id from sums s where s.limited and s.ids <> '{}'
            ) as f),
        (select array_agg(i.id) from sums s, unnest(s.ids) as i (id) where s.has_errors)
    into acked, freed, failed
    from asked a;
    acked := coalesce(acked, '{}');
end $$;

-- Lock deliveries.
-- Locks: the deliveries, by queue and id. Called by ack_and_start, ack_messages,
-- extend_deliveries and return_messages.
create or replace function holdfast._lock_deliveries(p_queue_ids int[], p_delivery_ids uuid[])
returns void
language plpgsql
as $$
begin
    perform from (
        select distinct u.queue_id, u.delivery_id
        from unnest(p_queue_ids, p_delivery_ids) as u (queue_id, delivery_id)
        order by u.queue_id, u.delivery_id
    ) as u
    cross join lateral (
        select from holdfast.deliveries d
        where d.queue_id = u.queue_id and d.delivery_id = u.delivery_id for update
    ) as d;
end $$;

-- Keep messages that are about to be acknowledged, of queues that keep them.
-- Locks: expects the deliveries locked. Called by _keep_discarded and ack_messages.
create or replace function holdfast._keep_places(
    p_queue_ids int[], p_delivery_ids uuid[], p_places int[]
) returns void
language plpgsql
reset enable_seqscan
as $$
begin
    insert into holdfast.kept_messages (queue_id, message_id, acked_at, delete_after, attempts,
        sent_at, group_key, payload, headers)
    select d.queue_id, m.id, holdfast.now(),
        holdfast.now() + q.keep_seconds * interval '1 second', m.attempts, m.sent_at, d.group_key,
        coalesce(m.payload, holdfast._body(d.queue_id, m.id)), m.headers
    from (
        select u.queue_id, u.delivery_id, array_agg(u.place) as places,
            bool_or(u.place is null) as all_of_it
        from unnest(p_queue_ids, p_delivery_ids, p_places) as u (queue_id, delivery_id, place)
        group by u.queue_id, u.delivery_id
    ) as u
    join holdfast.queues q on q.queue_id = u.queue_id and q.keep_seconds is not null
    cross join lateral (
        select * from holdfast.deliveries d
        where d.queue_id = u.queue_id and d.delivery_id = u.delivery_id limit 1
    ) as d
    cross join lateral unnest(d.message_ids, d.attempts, d.sent_ats, d.payloads, d.headers)
        with ordinality as m (id, attempts, sent_at, payload, headers, place)
    where d.keeps and (u.all_of_it or m.place = any (u.places))
        and m.place <> all (coalesce(d.done, '{}'))
    on conflict do nothing;
end $$;
