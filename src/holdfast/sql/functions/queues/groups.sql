-- Receive from FIFO queues.

-- Receive from a FIFO queue. Tokens say which groups to look at. They are read by age. A group is
-- taken by its advisory lock, tried without waiting, and then looked at with a new snapshot: one
-- that has a delivery is left alone.
--
-- No message is ever without a token or a delivery that stands for it: each send leaves a token of
-- its own, and a token is deleted only in a transaction that (a) saw all that it stands for, and
-- left a delivery with `more` set, or a later token, if something is left; or (b) while a delivery
-- of the group exists that says `more`: its end leaves a new token.
--
-- With p_only, only these groups are taken. With p_limited the deliveries count for a limit.
--
-- Between two statements a place may get another row, so tokens are deleted by place and id.
-- Locks: tokens and messages, skipping locked ones; advisory locks of groups, without waiting. A
-- message that a purge is deleting is waited for. Called by receive_messages and
-- _receive_limited.
create or replace function holdfast._receive_groups(
    p_queue_id int, p_lock_key bigint, p_now timestamptz, p_limit int, p_until timestamptz,
    p_consumer text, p_since timestamptz, p_per_group int, p_keeps boolean, p_joined boolean,
    p_limited boolean default null, p_only text[] default null
) returns table (
    next_due_at timestamptz, newest timestamptz[], queue_id int, delivery_id uuid, group_key text,
    message_ids bigint[], attempts int[], sent_ats timestamptz[], payloads json[],
    headers json[], errors text[]
)
language plpgsql
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_size int := p_limit + 4;
    v_after_at timestamptz := p_since;
    v_after_id bigint := 0;
    v_w record;
    v_groups int := 0;  -- taken so far
    v_got int;
    v_left timestamptz;  -- the oldest token that stays
    v_exhausted boolean := false;
begin
    for v_pass in 1 .. 8 loop
        -- Choosing locks no tokens, so that none is locked that is not deleted.
        with tokens as materialized (
            select t.ctid as tid, t.group_key, t.visible_at, t.token_id
            from holdfast.group_tokens t
            where t.queue_id = p_queue_id
                and (t.visible_at, t.token_id) > (v_after_at, v_after_id)
                and t.visible_at <= p_now
            order by t.visible_at, t.token_id
            limit v_size
        ), judged as materialized (
            select g.group_key, g.visible_at, g.token_id, d.delivery_id, d.more
            from (
                select t.group_key, min(t.visible_at) as visible_at, min(t.token_id) as token_id
                from tokens t group by t.group_key
            ) as g
            left join lateral (
                select d.delivery_id, d.more from holdfast.deliveries d
                where d.queue_id = p_queue_id and d.group_key = g.group_key limit 1
            ) as d on true
        ), mine as materialized (
            select j.group_key
            from (
                select j.group_key from judged j
                where j.delivery_id is null and (p_only is null or j.group_key = any (p_only))
                order by j.visible_at, j.token_id offset 0
            ) as j
            where pg_try_advisory_xact_lock(hashtextextended(j.group_key, p_lock_key))
            limit p_limit - v_groups
        )
        select m.mine, j.busy, j.quiet, t.* into v_w
        from (
            select array_agg(t.tid) as tids, array_agg(t.token_id) as ids,
                array_agg(t.group_key) as groups, array_agg(t.visible_at) as ats,
                max(t.visible_at) as newest, (array_agg(t.token_id))[count(*)] as newest_id,
                count(*)::int as count
            from tokens t
        ) as t, (
            select array_agg(m.group_key) as mine from mine m
        ) as m, (
            select array_agg(j.group_key) filter (where j.more) as busy,
                array_agg(j.delivery_id) filter (where not j.more) as quiet
            from judged j where j.delivery_id is not null
        ) as j;
        exit when v_w.count = 0;

        -- A delivery in flight takes over what the tokens of its group stand for. Not in a longer
        -- transaction of a caller: the delivery's end would wait for that.
        if v_w.quiet is not null and not p_joined then
            v_w.busy := v_w.busy || holdfast._hand_over(p_queue_id, v_w.quiet);
        end if;
        if v_w.mine is not null then
            -- A new snapshot sees what those did that held the locks before.
            return query
            with free as materialized (
                select g.group_key, g.place
                from unnest(v_w.mine) with ordinality as g (group_key, place)
                left join lateral (
                    select d.delivery_id from holdfast.deliveries d
                    where d.queue_id = p_queue_id and d.group_key = g.group_key limit 1
                ) as d on true
                where d.delivery_id is null
            ), waiting as materialized (
                select f.group_key, f.place, m.tid, m.message_id, m.visible_at,
                    row_number() over w as nth, bool_and(m.visible_at <= p_now) over w as is_due
                from free f
                cross join lateral (
                    select m.ctid as tid, m.message_id, m.visible_at
                    from holdfast.grouped_messages m
                    where m.queue_id = p_queue_id and m.group_key = f.group_key
                    order by m.message_id limit p_per_group + 1
                ) as m
                window w as (partition by f.group_key order by m.message_id)
            ), taken as (
                delete from holdfast.grouped_messages m where m.ctid = any (array(
                    select w.tid from waiting w where w.is_due and w.nth <= p_per_group))
                returning m.*
            ), kept as (
                insert into holdfast.deliveries (queue_id, group_key, visible_at, received_at,
                    consumer, has_bodies, keeps, more, limited, message_ids, attempts, origin_ids,
                    sent_ats, payloads, headers, errors)
                select p_queue_id, t.group_key, p_until, p_now, p_consumer,
                    count(*) > count(t.payload), p_keeps,
                    (t.group_key, count(*)) not in (
                        select w.group_key, max(w.nth) from waiting w group by w.group_key),
                    p_limited,
                    array_agg(t.message_id), array_agg(t.attempts + 1),
                    case when count(t.origin_id) > 0 then array_agg(t.origin_id) end,
                    array_agg(t.sent_at), array_agg(t.payload),
                    case when count(t.headers) > 0 then array_agg(t.headers) end,
                    case when count(t.error) > 0 then array_agg(t.error) end
                from (select * from taken t order by t.group_key, t.message_id) as t
                group by t.group_key
                returning *
            ), later as (
                insert into holdfast.group_tokens (queue_id, visible_at, token_id, group_key)
                select p_queue_id, w.visible_at, holdfast._next_message_id(), w.group_key
                from waiting w where w.nth = 1 and not w.is_due
            ), dropped as (
                -- Of a group whose messages were purged meanwhile the tokens stay.
                delete from holdfast.group_tokens t where t.ctid = any (array(
                    select t.ctid
                    from (
                        select u.tid, u.token_id
                        from unnest(v_w.tids, v_w.ids, v_w.groups) as u (tid, token_id, group_key)
                        where u.group_key = any (v_w.busy)
                            or u.group_key in (
                                select f.group_key from free f
                                where f.group_key in (select k.group_key from kept k)
                                    or not exists (select from waiting w
                                        where w.group_key = f.group_key and w.nth = 1 and w.is_due))
                        offset 0
                    ) as u
                    cross join lateral (
                        select t.ctid from holdfast.group_tokens t
                        where t.ctid = u.tid and t.token_id = u.token_id
                        for update skip locked
                    ) as t))
            )
            select null::timestamptz, null::timestamptz[], k.queue_id, k.delivery_id, k.group_key,
                k.message_ids, k.attempts, k.sent_ats,
                case when k.has_bodies
                    then holdfast._bodies(k.queue_id, k.message_ids, k.payloads)
                    else k.payloads end, k.headers, k.errors
            from kept k;
            get diagnostics v_got = row_count;
            v_groups := v_groups + v_got;
        elsif v_w.busy is not null then
            delete from holdfast.group_tokens t where t.ctid = any (array(
                select t.ctid
                from unnest(v_w.tids, v_w.ids, v_w.groups) as u (tid, token_id, group_key)
                cross join lateral (
                    select t.ctid from holdfast.group_tokens t
                    where t.ctid = u.tid and t.token_id = u.token_id
                    for update skip locked
                ) as t
                where u.group_key = any (v_w.busy)));
        end if;
        if v_left is null then
            select min(u.visible_at) into v_left
            from unnest(v_w.ats, v_w.groups) as u (visible_at, group_key)
            where (u.group_key = any (v_w.mine)) is not true
                and (u.group_key = any (v_w.busy)) is not true;
        end if;
        v_after_at := v_w.newest;
        v_after_id := v_w.newest_id;
        exit when v_groups >= p_limit or v_w.count < v_size;
        v_exhausted := v_pass = 8;
        v_size := least(v_size * 4, 5000);
    end loop;

    queue_id := p_queue_id;
    newest := array[coalesce(v_left, v_after_at)];
    if v_exhausted or v_groups >= p_limit then
        next_due_at := p_now;
    else
        next_due_at := holdfast._next_message(p_queue_id, p_now);
    end if;
    return next;
end $$;

-- Let deliveries in flight remember that their groups have more. Returns the groups of those that
-- nobody else has locked: the others may be over already.
-- Locks: deliveries, skipping locked ones. Called by _receive_groups.
create or replace function holdfast._hand_over(p_queue_id int, p_delivery_ids uuid[])
returns text[]
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_groups text[];
begin
    with marked as (
        update holdfast.deliveries d set more = true where d.ctid = any (array(
            select d.tid
            from unnest(p_delivery_ids) as q (delivery_id)
            cross join lateral (
                select d.ctid as tid from holdfast.deliveries d
                where d.queue_id = p_queue_id and d.delivery_id = q.delivery_id
                for no key update skip locked
            ) as d))
        returning d.group_key
    )
    select array_agg(m.group_key) into v_groups from marked m;
    return v_groups;
end $$;
