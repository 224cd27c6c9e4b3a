-- What a claim takes of the groups that wait, and what it writes about that.

-- Choose tasks in the order of their priority, a task of each group in turn, as far as the limits
-- allow. The groups are p_queues … p_groups, in the order of their turns; p_limits, p_slots and
-- p_free say what the limits allow. p_run_ids, p_keys are tasks that need not wait: within a
-- priority they and the others take turns. Returns all chosen tasks in order, and apart those that
-- limits concern, with their own priorities. `passed_over` is the earliest due time of a task that
-- need not wait and was not chosen. `is_more` is true if others wait that the limits allow.
--
-- A task counts for each limit that concerns it although another limit may refuse it. So one call
-- may take fewer than allowed, but never none: the first task is refused by no limit, unless it
-- uses units. Then none behind it uses any of the same before it, and `needs` says how many units
-- the first such task of each limit needs. Without sorting, the tasks of a group are found by the
-- one index that has them in order: a plan that was made while there were few tasks would read all
-- that wait, once for each group. Before version 18, PostgreSQL adds a price to each sort that is
-- left, for which it would compile the plan each time.
-- Locks: task rows, skipping locked ones. Called by _take_limited, which has the limits locked.
create or replace function holdfast._choose_limited(
    p_now timestamptz, p_limit int,
    p_queues text[], p_handlers text[], p_priorities int[], p_groups text[],
    p_limits int[], p_slots text[], p_free int[], p_units text[], p_mosts int[],
    p_run_ids uuid[], p_keys text[],
    out run_ids uuid[], out keys text[], out passed_over timestamptz, out is_more boolean,
    out limited_runs uuid[], out limited_keys text[], out limited_queues text[],
    out limited_handlers text[], out limited_groups text[], out limited_priorities int[],
    out need_limits int[], out need_slots text[], out needs int[]
)
language plpgsql
set enable_sort = off
as $$
begin
    with wants as materialized (
        select g.place, s.limit_id, s.slot, s.free, s.units, s.most
        from unnest(p_groups) with ordinality as g (limit_keys, place)
        cross join lateral jsonb_each_text(g.limit_keys::jsonb) as k
        join unnest(p_limits, p_slots, p_free, p_units, p_mosts)
            as s (limit_id, slot, free, units, most)
            on s.limit_id = k.key::int and s.slot = k.value
    ), allowed as materialized (
        select w.place, min(w.free) as free from wants w group by w.place
    ), groups as materialized (
        select g.queue, g.handler, g.priority, g.limit_keys collate "C" as limit_keys, g.place,
            least(p_limit, a.free) as free
        from unnest(p_queues, p_handlers, p_priorities, p_groups) with ordinality
            as g (queue, handler, priority, limit_keys, place)
        left join allowed a on a.place = g.place
        where coalesce(a.free, 1) > 0
    ), waiting as materialized (
        select t.run_id, t.key, t.limited_at, g.queue, g.handler, g.limit_keys, g.place,
            g.priority as filed_as,
            holdfast._aged(g.priority, p_now - t.limited_at, a.period) as priority
        from groups g
        left join (
            select r.queue, r.handler, min(l.period) as period
            from (select distinct r.queue, r.handler from groups r) as r
            join holdfast.limits l on l.kind = 'ageing' and not l.removed
                and holdfast._concerns(l.scope, l.name, r.queue, r.handler)
            group by r.queue, r.handler
        ) as a on a.queue = g.queue and a.handler = g.handler
        cross join lateral (
            select t.run_id, t.key, t.limited_at from holdfast.tasks t
            where t.queue = g.queue and t.handler = g.handler and t.priority = g.priority
                and t.limit_keys = g.limit_keys and t.limited_at is not null and not t.paused
                and t.worker is null
            order by t.limited_at
            limit least(g.free, 1 + 2 * p_limit / (select count(*)::int from groups))
            for update skip locked
        ) as t
    ), ranked as materialized (
        select n.*, row_number() over (
            order by n.priority, n.round, n.place, n.limited_at, n.run_id, n.key) as rank
        from (
            select w.*, row_number() over (
                partition by w.limit_keys order by w.priority, w.limited_at, w.run_id, w.key
            ) as round
            from waiting w
        ) as n
    ), over as materialized (  -- only a slot that several groups want can have too few, or units
        select c.*
        from (
            select r.rank, w.limit_id, w.slot, w.free, w.units, u.cost,
                sum(u.cost) over (partition by w.limit_id, w.slot order by r.rank) as total
            from ranked r join wants w on w.place = r.place
            cross join lateral (
                select case when w.units is null then 1 else (
                    select holdfast._units_of(w.units, w.most, t.run_id, t.handler, t.payload)
                    from holdfast.tasks t where t.run_id = r.run_id and t.key = r.key) end as cost
            ) as u
            where exists (select from wants o where o.units is not null)
                or exists (select from wants o group by o.limit_id, o.slot having count(*) > 1)
        ) as c
        where c.total > c.free
    ), refused as materialized (
        select distinct o.rank from over o
    ), needed as (
        select distinct on (o.limit_id, o.slot) o.limit_id, o.slot, o.cost
        from over o where o.units is not null order by o.limit_id, o.slot, o.rank
    ), others as (
        select u.run_id, u.key, t.priority, t.visible_at, u.place
        from unnest(p_run_ids, p_keys) with ordinality as u (run_id, key, place)
        cross join lateral (
            select t.priority, t.visible_at from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key limit 1
        ) as t
    ), merged as materialized (
        select b.*, row_number() over (
            order by b.priority, b.nth, b.is_limited, b.run_id, b.key) as place
        from (
            select r.run_id, r.key, r.priority::int, r.queue, r.handler, r.limit_keys, r.filed_as,
                null::timestamptz as visible_at, true as is_limited,
                row_number() over (partition by r.priority order by r.rank) as nth
            from ranked r where r.rank not in (select f.rank from refused f)
            union all
            select o.run_id, o.key, o.priority::int, null, null, null, null, o.visible_at, false,
                row_number() over (partition by o.priority order by o.place)
            from others o
        ) as b
    )
    select array_agg(t.run_id order by t.place), array_agg(t.key order by t.place),
        (select min(m.visible_at) from merged m where m.place > p_limit),
        coalesce((select bool_or(m.place > p_limit and m.is_limited) from merged m), false)
            or (count(*) filter (where t.is_limited) > 0 and exists (select from refused)),
        array_agg(t.run_id order by t.place) filter (where t.limit_keys <> '{}'),
        array_agg(t.key order by t.place) filter (where t.limit_keys <> '{}'),
        array_agg(t.queue order by t.place) filter (where t.limit_keys <> '{}'),
        array_agg(t.handler order by t.place) filter (where t.limit_keys <> '{}'),
        array_agg(t.limit_keys order by t.place) filter (where t.limit_keys <> '{}'),
        array_agg(t.filed_as order by t.place) filter (where t.limit_keys <> '{}'),
        (select array_agg(n.limit_id order by n.limit_id, n.slot) from needed n),
        (select array_agg(n.slot order by n.limit_id, n.slot) from needed n),
        (select array_agg(n.cost order by n.limit_id, n.slot) from needed n)
    into run_ids, keys, passed_over, is_more, limited_runs, limited_keys, limited_queues,
        limited_handlers, limited_groups, limited_priorities, need_limits, need_slots, needs
    from merged t where t.place <= p_limit;
end $$;

-- Return the priority that a task counts as after waiting so long: one more urgent for each period.
-- Called by _choose_limited.
create or replace function holdfast._aged(
    p_priority int, p_waited interval, p_period interval
) returns int
language sql immutable parallel safe
return case when p_period is null then p_priority
    else greatest(0, p_priority - floor(least(greatest(
        extract(epoch from p_waited) / extract(epoch from p_period), 0), 4))::int) end;

-- Record that chosen tasks count for their limits from now on: holders of concurrency limits, and
-- uses of rates.
-- Locks: expects the limits locked; rows of uses. Called by _take_limited.
create or replace function holdfast._hold_slots(
    p_now timestamptz, p_run_ids uuid[], p_keys text[], p_groups text[]
) returns void
language plpgsql
as $$
declare
    v_used record;
begin
    with slots as materialized (
        select u.run_id, u.key, l.limit_id, k.value collate "C" as slot, l.kind, l.period,
            l.units, l.most
        from unnest(p_run_ids, p_keys, p_groups) as u (run_id, key, limit_keys)
        cross join lateral jsonb_each_text(u.limit_keys::jsonb) as k
        cross join lateral (
            select * from holdfast.limits l where l.limit_id = k.key::int limit 1
        ) as l
    ), held as (
        insert into holdfast.limit_holders (limit_id, slot, run_id, key)
        select s.limit_id, s.slot, s.run_id, s.key from slots s
        where s.kind = 'concurrency' and (  -- costs half of `on conflict`: nobody else writes here
            select true from holdfast.limit_holders h
            where h.limit_id = s.limit_id and h.slot = s.slot and h.run_id = s.run_id
                and h.key = s.key) is null
    ), used as (
        select s.limit_id, s.slot, s.period, sum(case s.kind when 'rate' then 1 else (
            select holdfast._units_of(s.units, s.most, t.run_id, t.handler, t.payload)
            from holdfast.tasks t where t.run_id = s.run_id and t.key = s.key) end)::int as count
        from slots s where s.kind in ('rate', 'units') group by 1, 2, 3
    )
    select array_agg(u.limit_id) as limits, array_agg(u.slot) as slots,
        array_agg(u.period) as periods, array_agg(u.count) as counts
    into v_used from used u;
    if v_used.limits is not null then
        perform holdfast._add_uses(
            p_now, v_used.limits, v_used.slots, v_used.periods, v_used.counts);
    end if;
end $$;

-- Count uses of rates: of each limit and value of its key so many. Uses that are close together are
-- kept as one, at the later moment.
-- Locks: expects the limits locked; rows of uses. Called by _hold_slots and _count_messages.
create or replace function holdfast._add_uses(
    p_now timestamptz, p_limits int[], p_slots text[], p_periods interval[], p_counts int[]
) returns void
language plpgsql
as $$
begin
    insert into holdfast.limit_uses as o (limit_id, slot, ats, counts)
    select u.limit_id, u.slot, m.ats, m.counts
    from unnest(p_limits, p_slots, p_periods, p_counts) as u (limit_id, slot, period, count)
    left join lateral (
        select o.ats, o.counts from holdfast.limit_uses o
        where o.limit_id = u.limit_id and o.slot = u.slot limit 1
    ) as o on true
    cross join lateral (
        select array_agg(e.at order by e.at) as ats, array_agg(e.count order by e.at) as counts
        from (
            select max(e.at) as at, sum(e.count)::int as count
            from unnest(o.ats || p_now, o.counts || u.count) as e (at, count)
            where e.at > p_now - u.period
            group by floor(extract(epoch from e.at) * 100 / extract(epoch from u.period))
        ) as e
    ) as m
    on conflict (limit_id, slot) do update set ats = excluded.ats, counts = excluded.counts;
end $$;

-- Record where the next claim begins to look: after the group that was last in turn, or, if none of
-- the groups was free, after those that were looked at: p_limits, p_slots and p_free say what the
-- limits allowed. Groups that were free while others were in turn keep their place. A group was in
-- turn for all handlers in which tasks of its priority wait: groups of one handler could always
-- come before those of another otherwise. Returns true if none was free and others have not been
-- looked at since something was taken.
-- Locks: rows of limit_turns, in order. Called by _take_limited, which has the limits locked.
create or replace function holdfast._advance_turns(
    p_queues text[], p_handlers text[], p_priorities int[], p_groups text[],
    p_taken_queues text[], p_taken_handlers text[], p_taken_groups text[],
    p_taken_priorities int[], p_most int, p_limits int[], p_slots text[], p_free int[]
) returns boolean
language plpgsql
as $$
declare
    v_is_more boolean;
begin
    with taken as materialized (
        select u.queue, u.handler, u.limit_keys, u.priority, u.place, w.place as walked
        from unnest(p_taken_queues, p_taken_handlers, p_taken_groups, p_taken_priorities)
            with ordinality as u (queue, handler, limit_keys, priority, place)
        join unnest(p_queues, p_handlers, p_priorities, p_groups) with ordinality
            as w (queue, handler, priority, limit_keys, place)
            on (w.queue, w.handler, w.priority, w.limit_keys)
                = (u.queue, u.handler, u.priority, u.limit_keys)
    ), looked as materialized (
        select u.queue, u.handler, u.groups >= p_most as is_part, u.last_keys, u.priorities,
            u.last_place, u.groups >= p_most and not (p_taken_groups is not null
                and holdfast._is_any_free(u.all_keys, p_limits, p_slots, p_free)) as is_passed,
            coalesce(u.first_keys <= s.limit_keys, false) as has_wrapped,
            s.limit_keys as since, coalesce(s.wraps, 0) as wraps
        from (
            select u.queue, u.handler, count(distinct u.limit_keys collate "C") as groups,
                (array_agg(u.limit_keys order by u.place desc))[1] as last_keys,
                min(u.limit_keys collate "C") as first_keys,
                array_agg(distinct u.priority) as priorities, array_agg(u.limit_keys) as all_keys,
                max(u.place) as last_place
            from unnest(p_queues, p_handlers, p_priorities, p_groups) with ordinality
                as u (queue, handler, priority, limit_keys, place)
            group by u.queue, u.handler
        ) as u
        left join lateral (
            select s.limit_keys, s.wraps from holdfast.limit_turns s
            where s.queue = u.queue and s.handler = u.handler limit 1
        ) as s on true
    ), turned as materialized (
        select l.queue, l.handler, l.since, l.is_passed and t.last_keys is null as is_none,
            coalesce(t.last_keys, case when l.is_passed then l.last_keys else l.since end, '')
                as limit_keys,
            case when t.last_keys is null and l.is_passed then l.wraps + l.has_wrapped::int else 0
                end as wraps
        from looked l
        cross join lateral (
            select (array_agg(u.limit_keys order by u.place desc))[1] as last_keys
            from taken u
            where u.queue = l.queue and u.handler = l.handler
                or u.priority = any (l.priorities)
                    and (not l.is_part or not l.is_passed and u.walked < l.last_place)
        ) as t
    ), written as (
        insert into holdfast.limit_turns as s (queue, handler, limit_keys, wraps)
        select t.queue, t.handler, t.limit_keys, case when t.wraps < 2 then t.wraps else 0 end
        from turned t
        where t.limit_keys is distinct from t.since or t.wraps > 0
        order by t.queue, t.handler
        on conflict (queue, handler) do update
        set limit_keys = excluded.limit_keys, wraps = excluded.wraps
    )
    select bool_or(t.is_none and t.wraps between 0 and 1) into v_is_more from turned t;
    return coalesce(v_is_more, false);
end $$;
