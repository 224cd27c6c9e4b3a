-- What limits still allow.

-- Return what each limit of these groups still allows, by the value of its key: `free` is null for
-- any number; `next_at` is when a rate allows more. With `units`, a rate counts these, of which it
-- has `most`. Holders that count no longer are deleted.
-- Locks: expects the limits locked; rows of holders. Called by _take_limited.
create or replace function holdfast._free_slots(p_now timestamptz, p_groups text[])
returns table (
    limit_id int, slot text, free int, next_at timestamptz, is_rate boolean, units text, most int
)
language plpgsql
as $$
begin
    return query
    with slots as materialized (
        select distinct k.key::int as limit_id, k.value collate "C" as slot
        from unnest(p_groups) as g (limit_keys)
        cross join lateral jsonb_each_text(g.limit_keys::jsonb) as k
    ), known as materialized (
        select s.limit_id, s.slot, l.kind, l.most, l.period, l.holds, l.smooth, l.units
        from slots s
        cross join lateral (
            select * from holdfast.limits l where l.limit_id = s.limit_id limit 1
        ) as l
        where l.kind in ('concurrency', 'rate', 'units') and not l.removed
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
        r.next_at, k.kind <> 'concurrency', k.units, k.most
    from known k
    left join held h on h.limit_id = k.limit_id and h.slot = k.slot
    left join lateral (  -- a condition of the join would not keep the call from being made
        select r.free, r.next_at
        from holdfast._rate_left(
            p_now, k.limit_id, k.slot, k.most, k.period, k.smooth) as r
        where k.kind <> 'concurrency' limit 1
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

-- Return true if a rate counts what it let begin at a moment. What is later than a moment ahead was
-- before the clock went back: it counts no more. Called by _rate_left, list_limits and
-- _messages_of_limit.
create or replace function holdfast._counts_at(
    p_at timestamptz, p_now timestamptz, p_period interval
) returns boolean
language sql stable parallel safe
return p_at > p_now - p_period and p_at <= p_now + greatest(p_period, interval '10 seconds');

-- Return how many tasks, or units, a rate lets begin now: in no stretch as long as its period more
-- than p_most. If it is smooth, they begin at even distances, or, if these are short, some each
-- 0.1 s. `next_at` is when it lets p_need begin; null if it does now. Locks nothing. Called by
-- _free_slots, _next_units, _message_room, _within_keys, _messages_of_limit and explain_limits.
create or replace function holdfast._rate_left(
    p_now timestamptz, p_limit_id int, p_slot text, p_most int, p_period interval,
    p_smooth boolean, p_need int default 1, out free int, out next_at timestamptz
)
language plpgsql stable
as $$
declare
    v_used bigint;
    v_last timestamptz;
    v_ats timestamptz[];
    v_counts int[];
    v_distance interval := p_period / p_most;
    v_at_once int := case when p_smooth
        then greatest(1, floor(p_most * 0.1 / extract(epoch from p_period)))::int else p_most end;
begin
    select sum(e.count), max(e.at), array_agg(e.at), array_agg(e.count)
    into v_used, v_last, v_ats, v_counts
    from (
        select e.at, e.count
        from (
            select * from holdfast.limit_uses u
            where u.limit_id = p_limit_id and u.slot = p_slot limit 1
        ) as u
        cross join lateral unnest(u.ats, u.counts) as e (at, count)
        union all
        select c.at, c.units from holdfast.limit_corrections c
        where c.limit_id = p_limit_id and c.slot = p_slot
    ) as e
    where holdfast._counts_at(e.at, p_now, p_period);
    free := greatest(p_most - greatest(coalesce(v_used, 0), 0), 0);
    if free < p_need then  -- until so much of it is older than the period
        next_at := p_period + (
            select min(l.at) from (
                select e.at, coalesce(sum(e.count) over (order by e.at desc
                    range between unbounded preceding and current row exclude group), 0) as later
                from unnest(v_ats, v_counts) as e (at, count)
            ) as l
            where l.later <= p_most - p_need);
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

-- Return when the first of some rates lets so many units begin as are needed; null if all do now.
-- Locks nothing. Called by _take_limited.
create or replace function holdfast._next_units(
    p_now timestamptz, p_limits int[], p_slots text[], p_needs int[]
) returns timestamptz
language plpgsql stable
as $$
begin
    return (
        select min(r.next_at)
        from unnest(p_limits, p_slots, p_needs) as u (limit_id, slot, need)
        cross join lateral (
            select l.most, l.period from holdfast.limits l where l.limit_id = u.limit_id limit 1
        ) as l
        cross join lateral holdfast._rate_left(
            p_now, u.limit_id, u.slot, l.most, l.period, false, u.need) as r);
end $$;

-- Write down what attempts of activities that end now have used more or less than was counted when
-- they began. More counts from now on. Less ends with the task's first claim, so no later than what
-- it is taken from: a rate lets nothing begin too early. Attempts that are no longer open are left
-- out, and limits that are younger.
-- Locks: expects the turn rows locked; task rows by (run_id, key). Called by end_activities.
create or replace function holdfast._correct_units(
    p_now timestamptz, p_worker text, p_run_ids uuid[], p_keys text[], p_leases int[],
    p_units int[]
) returns void
language plpgsql
as $$
begin
    perform holdfast._lock_tasks(p_run_ids, p_keys);
    insert into holdfast.limit_corrections (limit_id, slot, at, units)
    select l.limit_id, l.slot, case when l.units > 0 then p_now else t.started_at end, l.units
    from unnest(p_run_ids, p_keys, p_leases, p_units) as u (run_id, key, lease_no, units)
    cross join lateral (
        select t.queue, t.handler, t.payload, t.started_at from holdfast.tasks t
        where t.run_id = u.run_id and t.key = u.key and t.worker = p_worker
            and t.lease_no = u.lease_no limit 1
    ) as t
    cross join lateral (
        select l.limit_id, holdfast._slot_of(t.payload -> 'input', l.key) as slot,
            u.units - holdfast._units_of(l.units, l.most, u.run_id, t.handler, t.payload) as units
        from holdfast.limits l
        where l.kind = 'units' and not l.removed and l.added_at <= t.started_at
            and holdfast._concerns(l.scope, l.name, t.queue, t.handler)
    ) as l
    where l.units <> 0;
end $$;
