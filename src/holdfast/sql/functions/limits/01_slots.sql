-- What limits still allow.

-- Return what each limit of these groups still allows, by the value of its key: `free` is null for
-- any number; `next_at` is when a rate allows more. Holders that count no longer are deleted.
-- Locks: expects the limits locked; rows of holders. Called by _take_limited.
create or replace function holdfast._free_slots(p_now timestamptz, p_groups text[])
returns table (limit_id int, slot text, free int, next_at timestamptz, is_rate boolean)
language plpgsql
as $$
#variable_conflict use_column
begin
    return query
    with slots as materialized (
        select distinct k.key::int as limit_id, k.value collate "C" as slot
        from unnest(p_groups) as g (limit_keys)
        cross join lateral jsonb_each_text(g.limit_keys::jsonb) as k
    ), known as materialized (
        select s.limit_id, s.slot, l.kind, l.most, l.period, l.holds, l.smooth
        from slots s
        cross join lateral (
            select * from holdfast.limits l where l.limit_id = s.limit_id limit 1
        ) as l
        where l.kind in ('concurrency', 'rate') and not l.removed
    ), holders as materialized (
        select k.limit_id, k.slot, h.tid, t.counts
        from known k
        cross join lateral (
            select h.ctid as tid, h.run_id, h.key from holdfast.limit_holders h
            where h.limit_id = k.limit_id and h.slot = k.slot offset 0
        ) as h
        left join lateral (
            select true as counts from holdfast.tasks t
            where t.run_id = h.run_id and t.key = h.key
                and (k.holds = 'run' or t.worker is not null) limit 1
        ) as t on true
        where k.kind = 'concurrency'
    ), forgotten as (
        delete from holdfast.limit_holders h using holders o
        where h.ctid = o.tid and o.counts is null
    ), held as (
        select h.limit_id, h.slot, count(h.counts)::int as count from holders h group by 1, 2
    )
    select k.limit_id, k.slot,
        case k.kind when 'concurrency' then greatest(k.most - coalesce(h.count, 0), 0)
            else r.free end,
        r.next_at, k.kind = 'rate'
    from known k
    left join held h on h.limit_id = k.limit_id and h.slot = k.slot
    left join lateral (  -- a condition of the join would not keep the call from being made
        select r.free, r.next_at
        from holdfast._rate_left(
            p_now, k.limit_id, k.slot, k.most, k.period, k.smooth) as r
        where k.kind = 'rate' limit 1
    ) as r on true;
end $$;

-- Return true if the limits allow something of one of the groups. Called by _take_limited and
-- _advance_turns.
create or replace function holdfast._is_any_free(
    p_groups text[], p_limits int[], p_slots text[], p_free int[]
) returns boolean
language sql immutable
as $$
    with refused as (
        select g.limit_keys
        from unnest(p_groups) as g (limit_keys)
        cross join lateral jsonb_each_text(g.limit_keys::jsonb) as k
        join unnest(p_limits, p_slots, p_free) as s (limit_id, slot, free)
            on s.limit_id = k.key::int and s.slot = k.value
        where s.free <= 0
    )
    select exists (
        select from unnest(p_groups) as g (limit_keys)
        where g.limit_keys not in (select r.limit_keys from refused r))
$$;

-- Return how many tasks a rate lets begin now: in no stretch as long as its period more than
-- p_most. If it is smooth, they begin at even distances, or, if these are short, some each 0.1 s.
-- `next_at` is when it lets more begin; null if it lets some begin now. Locks nothing. Called by
-- _free_slots and explain_limits.
create or replace function holdfast._rate_left(
    p_now timestamptz, p_limit_id int, p_slot text, p_most int, p_period interval,
    p_smooth boolean, out free int, out next_at timestamptz
)
language plpgsql stable
as $$
declare
    v_used int;
    v_first timestamptz;
    v_last timestamptz;
    v_distance interval := p_period / p_most;
    v_at_once int := case when p_smooth
        then greatest(1, floor(p_most * 0.1 / extract(epoch from p_period)))::int else p_most end;
begin
    select sum(e.count), min(e.at), max(e.at) into v_used, v_first, v_last
    from (
        select * from holdfast.limit_uses u
        where u.limit_id = p_limit_id and u.slot = p_slot limit 1
    ) as u
    cross join lateral unnest(u.ats, u.counts) as e (at, count)
    where e.at > p_now - p_period
        -- What is later than a moment ahead was before the clock went back: it counts no more.
        and e.at <= p_now + greatest(p_period, interval '10 seconds');
    free := greatest(p_most - coalesce(v_used, 0), 0);
    if free = 0 then
        next_at := v_first + p_period;
    elsif p_smooth and v_last is not null then
        free := least(free, v_at_once, floor(extract(epoch from p_now - v_last)
            / extract(epoch from v_distance))::int);
        if free <= 0 then
            free := 0;
            next_at := v_last + v_distance;
        end if;
    elsif p_smooth then
        free := least(free, v_at_once);
    end if;
end $$;
