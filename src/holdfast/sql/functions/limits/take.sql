-- Claims under limits. Tasks that limits concern wait in groups; a claim locks the limits, goes
-- round the groups, counts what each limit still allows, and takes so many.

-- Apply limits to what a claim has locked: tasks that limits concern wait from now on. With p_walk,
-- choose among those that wait and the others, at most p_limit. `next_at` is when to ask again for
-- tasks that wait, null for not before something else happens; `are_waiting` is true if some do.
-- Locks: expects the task rows locked; limits, skipping locked ones; task rows, skipping locked
-- ones. Called by claim_tasks.
create or replace function holdfast._apply_limits(
    p_now timestamptz, p_queues text[], p_handlers text[], p_limit int, p_walk boolean,
    inout run_ids uuid[], inout keys text[], inout newest timestamptz, out next_at timestamptz,
    out are_waiting boolean
)
language plpgsql
as $$
declare
    v_filed int := 0;
    v_found int := coalesce(cardinality(run_ids), 0);
    v_taken record;
begin
    if v_found > 0 then
        select f.run_ids, f.keys, f.filed into run_ids, keys, v_filed
        from holdfast._file_limited(run_ids, keys) as f;
    end if;
    if p_walk then
        select * into v_taken
        from holdfast._take_limited(p_now, p_queues, p_handlers, p_limit, run_ids, keys, newest);
        run_ids := v_taken.run_ids;
        keys := v_taken.keys;
        newest := v_taken.newest;
        next_at := v_taken.next_at;
        are_waiting := v_taken.are_waiting;
    end if;
    if v_filed > 0 and v_found >= p_limit then  -- more may be due
        next_at := p_now;
    end if;
end $$;

-- Choose among the tasks that wait in groups and those given, which are due and need not wait.
-- Priorities come first. Within one priority the two kinds take turns, and so do the groups.
-- If another claim has a limit locked, its tasks are left for a claim some milliseconds later.
-- Locks: limits, skipping locked ones; task rows, skipping locked ones. Called by _apply_limits.
create or replace function holdfast._take_limited(
    p_now timestamptz, p_queues text[], p_handlers text[], p_limit int,
    inout run_ids uuid[], inout keys text[], inout newest timestamptz, out next_at timestamptz,
    out are_waiting boolean
)
language plpgsql
as $$
declare
    v_ranges record := holdfast._lock_limits(p_queues, p_handlers);
    v_most constant int := 16 + p_limit;
    v_walk record;
    v_slots record;
    v_chosen record;
    v_is_stale boolean := false;
begin
    are_waiting := v_ranges.is_busy or v_ranges.queues is not null;
    if v_ranges.is_busy then
        next_at := p_now + interval '5 ms';
    end if;
    if v_ranges.queues is null then
        return;
    end if;
    select array_agg(g.queue order by g.place) as queues,
        array_agg(g.handler order by g.place) as handlers,
        array_agg(g.priority order by g.place) as priorities,
        array_agg(g.limit_keys order by g.place) as groups,
        array_agg(g.head_at order by g.place) as heads,
        bool_or(g.head_at <= v_ranges.added_at) as may_be_stale
    into v_walk
    from holdfast._walk_groups(v_ranges.queues, v_ranges.handlers, v_most) as g;
    if v_walk.queues is null then
        return;
    end if;
    if v_walk.may_be_stale then
        v_is_stale := holdfast._refile_groups(
            v_walk.queues, v_walk.handlers, v_walk.priorities, v_walk.groups, v_walk.heads,
            v_ranges.added_at, p_limit);
    end if;
    if v_is_stale then
        next_at := p_now;
        return;
    end if;
    select array_agg(s.limit_id) as limits, array_agg(s.slot) as slots, array_agg(s.free) as free,
        min(s.next_at) as next_at, bool_or(s.is_rate) as have_rates,
        array_agg(s.units) as units, array_agg(s.most) as mosts
    into v_slots
    from holdfast._free_slots(p_now, v_walk.groups) as s;
    if cardinality(v_walk.groups) < v_most
        and not holdfast._is_any_free(v_walk.groups, v_slots.limits, v_slots.slots, v_slots.free)
    then
        next_at := least(next_at, v_slots.next_at);
        return;  -- all groups were looked at, and none is free: only the others are taken
    end if;
    select * into v_chosen
    from holdfast._choose_limited(p_now, p_limit, v_walk.queues, v_walk.handlers,
        v_walk.priorities, v_walk.groups, v_slots.limits, v_slots.slots, v_slots.free,
        v_slots.units, v_slots.mosts, run_ids, keys);
    newest := case when v_chosen.passed_over is null then newest
        else least(newest, v_chosen.passed_over) end;
    run_ids := v_chosen.run_ids;
    keys := v_chosen.keys;
    perform holdfast._hold_slots(p_now, v_chosen.limited_runs, v_chosen.limited_keys,
        v_chosen.limited_groups);
    if holdfast._advance_turns(v_walk.queues, v_walk.handlers, v_walk.priorities, v_walk.groups,
        v_chosen.limited_queues, v_chosen.limited_handlers, v_chosen.limited_groups,
        v_chosen.limited_priorities, v_most, v_slots.limits, v_slots.slots, v_slots.free)
        or v_chosen.is_more or v_slots.have_rates and v_chosen.limited_runs is not null
    then
        next_at := p_now;  -- the next claim knows also when a rate allows more
    else
        next_at := least(next_at, v_slots.next_at, holdfast._next_units(
            p_now, v_chosen.need_limits, v_chosen.need_slots, v_chosen.needs));
    end if;
end $$;

-- Lock the limits of all queues and handlers in which tasks wait. Returns those whose limits are
-- all locked, as two parallel arrays; `is_busy` is true if there are others. `added_at` is when the
-- newest limit was added.
-- Locks: limits by id, skipping locked ones. Called by _take_limited.
create or replace function holdfast._lock_limits(
    p_queues text[], p_handlers text[], out queues text[], out handlers text[],
    out is_busy boolean, out added_at timestamptz
)
language plpgsql
as $$
declare
    v_queues text[];
    v_handlers text[];
    v_locked int[];
begin
    select array_agg(q.queue), array_agg(h.handler) into v_queues, v_handlers
    from unnest(p_queues) as q (queue) cross join unnest(p_handlers) as h (handler)
    cross join lateral (
        select from holdfast.tasks t
        where t.queue = q.queue and t.handler = h.handler
            and t.limited_at is not null and not t.paused limit 1
    ) as t;
    is_busy := false;
    if v_queues is null then
        return;
    end if;
    select array_agg(l.limit_id), max(l.added_at) into v_locked, added_at
    from (
        select l.limit_id, l.added_at from holdfast.limits l
        where exists (
            select from unnest(v_queues, v_handlers) as r (queue, handler)
            where holdfast._concerns(l.scope, l.name, r.queue, r.handler))
        order by l.limit_id
        for no key update skip locked
    ) as l;
    select array_agg(r.queue) filter (where not b.is_busy),
        array_agg(r.handler) filter (where not b.is_busy), coalesce(bool_or(b.is_busy), false)
    into queues, handlers, is_busy
    from unnest(v_queues, v_handlers) as r (queue, handler)
    cross join lateral (
        select exists (
            select from holdfast.limits l
            where l.limit_id <> all (coalesce(v_locked, '{}'))
                and holdfast._concerns(l.scope, l.name, r.queue, r.handler)) as is_busy
    ) as b;
end $$;

-- Return the groups of tasks that wait, those first whose turn it is, at most p_most for each
-- queue, handler and priority. The search reads the index in short stretches: a probe reads most of
-- an index page anyway. Where a stretch ends, it jumps to the next group; after one of a single
-- group the next is shorter.
-- `head_at` is since when the first task of the group waits. Locks nothing. Called by
-- _take_limited.
create or replace function holdfast._walk_groups(
    p_queues text[], p_handlers text[], p_most int
) returns table (
    queue text, handler text, priority int, limit_keys text, head_at timestamptz, place bigint
)
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    return query
    with recursive walk as (
        select r.queue, r.handler, p.priority, h.half, h.since as limit_keys, h.until,
            null::timestamptz as head_at, 0 as nth, true as is_last, 16 as stretch
        from unnest(p_queues, p_handlers) as r (queue, handler)
        left join lateral (
            select s.limit_keys from holdfast.limit_turns s
            where s.queue = r.queue and s.handler = r.handler limit 1
        ) as s on true
        cross join generate_series(0, 4) as p (priority)
        cross join lateral (
            values (0, coalesce(s.limit_keys, ''), null), (1, '', s.limit_keys)
        ) as h (half, since, until)
        where h.half = 0 or h.until is not null
        union all
        select w.queue, w.handler, w.priority, w.half, g.limit_keys, w.until, g.limited_at,
            w.nth + g.nth::int, g.is_last, case when g.found > 1 then 16 else 2 end
        from walk w
        cross join lateral (
            select f.limit_keys, f.limited_at, row_number() over (order by f.limit_keys) as nth,
                lead(f.limit_keys) over (order by f.limit_keys) is null as is_last,
                count(*) over () as found
            from (
                select distinct on (t.limit_keys) t.limit_keys, t.limited_at
                from (
                    select t.limit_keys, t.limited_at from holdfast.tasks t
                    where t.queue = w.queue and t.handler = w.handler and t.priority = w.priority
                        and t.limited_at is not null and not t.paused
                        and t.limit_keys > w.limit_keys
                    order by t.limit_keys, t.limited_at limit w.stretch
                ) as t
                order by t.limit_keys, t.limited_at
            ) as f
        ) as g
        where w.is_last and w.nth < p_most and (w.until is null or g.limit_keys <= w.until)
    )
    select w.queue, w.handler, w.priority, w.limit_keys, w.head_at, w.place
    from (
        select w.*, row_number() over (order by w.half, w.limit_keys, w.queue, w.handler) as place,
            row_number() over (
                partition by w.queue, w.handler, w.priority order by w.half, w.limit_keys) as nth_of
        from walk w where w.nth > 0
    ) as w
    where w.nth_of <= p_most;
end $$;
