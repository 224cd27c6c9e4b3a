-- How limits of message queues are used.

-- Count the messages of a queue for a limit of it: those in flight, those that its rate counts now,
-- the values of its key that allow no more, and how many of the first 1,000 that are due wait.
-- Called by list_limits.
create or replace function holdfast._messages_of_limit(
    p_limit holdfast.limits, p_queue_id int,
    out held int, out used bigint, out full_keys int, out waiting int
)
language plpgsql stable
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := holdfast.now();
    v_full text[];
begin
    if p_limit.kind = 'concurrency' then
        select coalesce(sum(s.count), 0)::int, count(*) filter (where s.count >= p_limit.most)::int,
            array_agg(s.slot) filter (where s.count >= p_limit.most)
        into held, full_keys, v_full
        from (
            select holdfast._slot_of(m.payload, p_limit.key) as slot, count(*) as count
            from holdfast._payloads_in_flight(p_queue_id) as m (payload) group by 1
        ) as s;
    else
        select coalesce(sum(least(coalesce(u.used, 0), p_limit.most)), 0)::bigint,
            count(*) filter (where u.free <= 0)::int,
            array_agg(u.slot) filter (where u.free <= 0)
        into used, full_keys, v_full
        from (
            select u.slot, f.free, (
                select sum(c.count) from unnest(u.ats, u.counts) as c (at, count)
                where holdfast._counts_at(c.at, v_now, p_limit.period)) as used
            from holdfast.limit_uses u
            cross join lateral holdfast._rate_left(v_now, u.limit_id, u.slot, p_limit.most,
                p_limit.period, p_limit.smooth) as f
            where u.limit_id = -p_limit.limit_id
        ) as u;
    end if;
    select count(*)::int into waiting
    from (
        (select m.message_id, m.payload
        from unnest('{8,9,10,11,12,0,1,2,3,4}'::int[]) as l (priority)
        cross join lateral (
            select m.message_id, m.payload from holdfast.messages m
            where m.queue_id = p_queue_id and m.priority = l.priority and m.visible_at <= v_now
            union all
            select m.message_id, m.payload from holdfast.filtered_messages m
            where m.queue_id = p_queue_id and m.priority = l.priority and m.visible_at <= v_now
        ) as m
        limit 1000)
        union all
        (select m.message_id, m.payload from holdfast.grouped_messages m
        where m.queue_id = p_queue_id and m.visible_at <= v_now
        limit 1000)
    ) as m
    where v_full <> '{}' and case p_limit.key when '' then true else holdfast._slot_of(
        coalesce(m.payload, holdfast._body(p_queue_id, m.message_id)), p_limit.key)
        = any (v_full) end;
end $$;
