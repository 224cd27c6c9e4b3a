-- The values of keys for which messages wait for limits, each a row of limited_groups, and when one
-- of its messages can be allowed at the earliest. Receives look at the rows in the order of these
-- moments, so values whose rates are used up cost nothing until their time has come.

-- Return values of keys for which messages of a queue wait, and one more of which is allowed: the
-- first p_limit or more, by the moment from which rates allow one; for a null p_limit all.
-- `next_at` is when others may be. What waits for other limits than there are now goes back to the
-- front of the queue.
-- Locks: expects the limits locked; rows of groups; messages. Called by _take_by_key.
create or replace function holdfast._allowed_groups(
    p_queue_id int, p_queue text, p_now timestamptz, p_limit int,
    out groups text[], out next_at timestamptz
)
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_ids int[] := array(
        select l.limit_id from holdfast._message_limits(p_queue) as l
        where l.key <> '' order by 1);
    v_size int := greatest(200, 2 * p_limit);
    v_at timestamptz := '-infinity';  -- of the last that was looked at
    v_last text := '';
    v_found record;
    v_within record;
begin
    loop
        select array_agg(g.limit_keys) filter (where k.has and k.ids = v_ids) as present,
            array_agg(g.limit_keys) filter (where k.has and k.ids <> v_ids) as former,
            array_agg(g.limit_keys) filter (where not k.has) as empty,
            (array_agg(g.allowed_at))[count(*)] as at, (array_agg(g.limit_keys))[count(*)] as last,
            count(*)::int as count
        into v_found
        from (
            select g.limit_keys, g.allowed_at from holdfast.limited_groups g
            where g.queue_id = p_queue_id and g.allowed_at <= p_now
                and (g.allowed_at, g.limit_keys) > (v_at, v_last)
            order by g.allowed_at, g.limit_keys limit v_size
        ) as g
        cross join lateral (
            select array(
                select j.key::int from jsonb_object_keys(g.limit_keys::jsonb) as j (key)
                order by 1) as ids,
                exists (
                    select from holdfast.limited_messages m
                    where m.queue_id = p_queue_id and m.limit_keys = g.limit_keys) as has
        ) as k;
        exit when v_found.count = 0;
        if v_found.former is not null then
            perform holdfast._let_go(p_queue_id, v_found.former);
        end if;
        delete from holdfast.limited_groups g
        where g.queue_id = p_queue_id and g.limit_keys = any (v_found.empty);
        if v_found.present is not null then
            v_within := holdfast._within_keys(p_queue_id, p_queue, p_now, v_found.present);
            groups := groups || array(
                select v_found.present[u.place] from unnest(v_within.possible) as u (place));
            update holdfast.limited_groups g set allowed_at = u.at
            from unnest(v_found.present, v_within.waits) as u (limit_keys, at)
            cross join lateral (
                select g.ctid from holdfast.limited_groups g
                where g.queue_id = p_queue_id and g.limit_keys = u.limit_keys limit 1
            ) as f
            where g.ctid = f.ctid and u.at > p_now;
        end if;
        exit when v_found.count < v_size;
        if cardinality(groups) >= p_limit then
            next_at := p_now;  -- the next receive reads on
            return;
        end if;
        v_at := v_found.at;
        v_last := v_found.last;
        v_size := least(4 * v_size, 4096);
    end loop;
    next_at := (
        select g.allowed_at from holdfast.limited_groups g
        where g.queue_id = p_queue_id and g.allowed_at > p_now
        order by g.allowed_at limit 1);
end $$;

-- Let messages that wait for limits with a key wait at the front of their queue again: those with
-- these values of their keys, or all.
-- Locks: messages. Called by _allowed_groups and _tell_limited.
create or replace function holdfast._let_go(p_queue_id int, p_groups text[]) returns void
language plpgsql
set enable_bitmapscan = off
as $$
begin
    with gone as (
        delete from holdfast.limited_messages k
        where k.queue_id = p_queue_id and (p_groups is null or k.limit_keys = any (p_groups))
        returning k.*
    ), groups as (
        delete from holdfast.limited_groups g
        where g.queue_id = p_queue_id and (p_groups is null or g.limit_keys = any (p_groups))
    ), plain as (
        update holdfast.messages m set priority = g.priority from gone g
        where m.queue_id = p_queue_id and m.priority = g.priority + 8
            and m.visible_at = g.visible_at and m.message_id = g.message_id
    )
    update holdfast.filtered_messages m set priority = g.priority from gone g
    where m.queue_id = p_queue_id and m.priority = g.priority + 8
        and m.visible_at = g.visible_at and m.message_id = g.message_id;
end $$;
