-- What is asked about limits, and what is left over of them.

-- Return the queues and handlers in which tasks wait for limits. The search jumps from range to
-- range through the index. Called by _active_runs, _place_notices, _tell_limited, list_limits and
-- sweep_limits.
create or replace function holdfast._limited_ranges() returns table (queue text, handler text)
language sql stable
set enable_seqscan = off
as $$
    with recursive ranges as (
        (select t.queue, t.handler from holdfast.tasks t
        where t.limited_at is not null and not t.paused
        order by t.queue, t.handler limit 1)
        union all
        select n.queue, n.handler
        from ranges r
        cross join lateral (
            select t.queue, t.handler from holdfast.tasks t
            where (t.queue, t.handler) > (r.queue, r.handler)
                and t.limited_at is not null and not t.paused
            order by t.queue, t.handler limit 1
        ) as n
    )
    select r.queue, r.handler from ranges r
$$;

-- Return (topic, payload) notices for workers of queues in which tasks wait for places that runs
-- hold, null for none. Who ends runs from outside asks before it does: no worker claims by itself
-- after that. Locks nothing. Called by _end_each and reschedule_runs.
create or replace function holdfast._place_notices(p_run_ids uuid[]) returns text[]
language plpgsql stable
as $$
begin
    if not exists (select from holdfast.limits) then
        return null;
    end if;
    return (
        select array_agg(distinct array['work', r.queue])
        from (
            select distinct l.scope, l.name
            from unnest(p_run_ids) as u (run_id)
            cross join lateral (
                select * from holdfast.tasks t where t.run_id = u.run_id offset 0
            ) as t
            join holdfast.limits l on holdfast._concerns(l.scope, l.name, t.queue, t.handler)
                and case l.holds when 'run' then t.key = '' and (t.lease_no > 0
                        or holdfast._holds(t.run_id, l.limit_id, holdfast._slot_of(
                            (select r.input from holdfast.runs r where r.run_id = t.run_id),
                            l.key)))
                    when 'turn' then t.worker is not null end
            where not l.removed
        ) as l
        join holdfast._limited_ranges() as r
            on holdfast._concerns(l.scope, l.name, r.queue, r.handler));
end $$;

-- List the limits, by scope, name, kind and key. `held` counts the tasks, and messages in flight,
-- that count for a limit of concurrency, `full_keys` the values of its key that allow no more.
-- `waiting` counts the tasks of its queue, workflow or activity that wait for any limit, up to
-- 1,000 of each handler in each queue, and of the first 1,000 messages that are due those that the
-- limit does not allow; if there are more, `more_wait` is true. `used` is what of a rate, or of its
-- units, is used now. Called by clients.
create or replace function holdfast.list_limits()
returns table (
    scope text, name text, kind text, key text, most int, period_seconds float8, holds text,
    smooth boolean, is_declared boolean, declared json, changed_at bigint, held int, full_keys int,
    waiting int, more_wait boolean, units text, used bigint
)
language sql stable
set enable_seqscan = off
as $$
    with ranges as materialized (
        select r.queue, r.handler, least(c.found, 1000) as waiting, c.found > 1000 as more_wait
        from holdfast._limited_ranges() as r
        cross join lateral (
            select count(*)::int as found
            from (
                select from holdfast.tasks t
                where t.queue = r.queue and t.handler = r.handler
                    and t.limited_at is not null and not t.paused
                limit 1001
            ) as t
        ) as c
    )
    select l.scope, l.name, l.kind, l.key, l.most, extract(epoch from l.period)::float8, l.holds,
        l.smooth, l.declared is not null, l.declared, holdfast._micros(l.changed_at),
        h.held + coalesce(m.held, 0), h.full_keys + coalesce(m.full_keys, 0),
        w.waiting + coalesce(m.waiting, 0), w.more_wait or coalesce(m.waiting = 1000, false),
        l.units, u.used + coalesce(m.used, 0)
    from holdfast.limits l
    cross join lateral (
        select coalesce(sum(r.waiting), 0)::int as waiting,
            coalesce(bool_or(r.more_wait), false) as more_wait
        from ranges r
        where holdfast._concerns(l.scope, l.name, r.queue, r.handler)
    ) as w
    cross join lateral (
        select coalesce(sum(s.count), 0)::int as held,
            count(*) filter (where s.count >= l.most)::int as full_keys
        from (
            select h.slot, count(*) as count
            from holdfast.limit_holders h
            cross join lateral (
                select from holdfast.tasks t
                where t.run_id = h.run_id and t.key = h.key
                    and (l.holds = 'run' or t.worker is not null) limit 1
            ) as t
            where h.limit_id = l.limit_id
            group by h.slot
        ) as s
    ) as h
    cross join lateral (
        select case when l.kind in ('rate', 'units') then
            coalesce(sum(least(greatest(s.used, 0), l.most)), 0)::bigint end as used
        from (
            select e.slot, sum(e.count) as used
            from (
                select u.slot, c.at, c.count
                from holdfast.limit_uses u
                cross join lateral unnest(u.ats, u.counts) as c (at, count)
                where u.limit_id = l.limit_id
                union all
                select c.slot, c.at, c.units
                from holdfast.limit_corrections c where c.limit_id = l.limit_id
            ) as e
            where holdfast._counts_at(e.at, holdfast.now(), l.period)
            group by e.slot
        ) as s
    ) as u
    left join lateral (
        select m.*
        from (
            select q.queue_id from holdfast.queues q
            where l.scope = 'queue' and q.name = l.name and l.kind in ('concurrency', 'rate')
            limit 1
        ) as q
        cross join lateral holdfast._messages_of_limit(l, q.queue_id) as m
    ) as m on true
    where not l.removed
    order by l.scope, l.name, l.kind, l.key
$$;

-- Return what the tasks of a run wait for: for each task and each of its limits, what the limit
-- allows. Of a step of a flow only the task that is due longest: all have the same limits. `held`
-- counts the tasks that count for the limit with this value of its key; `free` is what it allows
-- now, `uses` how many units the task uses, and `next_at` when a rate allows them. `ahead` counts
-- the tasks of the same group that come first, at most 10,000. Locks nothing. Called by clients.
create or replace function holdfast.explain_limits(p_run_id uuid)
returns table (
    task_key text, waits_since bigint, ahead int, scope text, name text, kind text, key text,
    slot text, most int, period_seconds float8, holds text, smooth boolean, held int, free int,
    next_at bigint, units text, uses int
)
language sql stable
set enable_seqscan = off
as $$
    select t.key, holdfast._micros(t.limited_at), a.ahead, l.scope, l.name, l.kind, l.key, k.value,
        l.most, extract(epoch from l.period)::float8, l.holds, l.smooth, h.held,
        case l.kind when 'concurrency' then greatest(l.most - h.held, 0) else r.free end,
        holdfast._micros(r.next_at), l.units, n.uses
    from (
        select distinct on (case t.kind when 'step' then split_part(t.key, ':', 1) else t.key end,
            t.kind) t.*
        from holdfast.tasks t
        where t.run_id = p_run_id and t.limited_at is not null and not t.paused
        order by case t.kind when 'step' then split_part(t.key, ':', 1) else t.key end, t.kind,
            t.limited_at, t.key collate "C"
    ) as t
    cross join lateral (
        select count(*)::int as ahead
        from (
            select from holdfast.tasks o
            where o.queue = t.queue and o.handler = t.handler and o.limit_keys = t.limit_keys
                and o.priority = any ('{0,1,2,3,4}') and o.priority <= t.priority
                and o.limited_at is not null and not o.paused
                and (o.priority < t.priority or o.limited_at < t.limited_at)
            limit 10000
        ) as o
    ) as a
    cross join lateral jsonb_each_text(t.limit_keys::jsonb) as k
    cross join lateral (
        select * from holdfast.limits l where l.limit_id = k.key::int and not l.removed limit 1
    ) as l
    cross join lateral (
        select count(*)::int as held from holdfast.limit_holders h
        cross join lateral (
            select from holdfast.tasks o
            where o.run_id = h.run_id and o.key = h.key
                and (l.holds = 'run' or o.worker is not null) limit 1
        ) as o
        where h.limit_id = l.limit_id and h.slot = k.value
    ) as h
    cross join lateral (
        select case l.kind when 'units' then holdfast._units_of(
            l.units, l.most, t.run_id, t.handler, t.payload) end as uses
    ) as n
    left join lateral holdfast._rate_left(holdfast.now(), l.limit_id, k.value, l.most, l.period,
        coalesce(l.smooth, false), coalesce(n.uses, 1)) as r on l.kind in ('rate', 'units')
    order by t.key, l.scope, l.name, l.kind, l.key
$$;

-- Delete what counts no longer for limits under which nothing is claimed now: holders, uses and
-- corrections that are older than their period, and removed limits for which no task waits. At most
-- p_limit rows of each. Returns how many rows.
-- Locks: limits by id, skipping locked ones: a claim must not count on a row that is deleted.
-- Called by maintenance, in any number of processes at once.
create or replace function holdfast.sweep_limits(p_limit int) returns int
language plpgsql
reset enable_seqscan
as $$
declare
    v_now timestamptz := holdfast.now();
    v_locked int[] := array(
        select l.limit_id from holdfast.limits l order by l.limit_id
        for no key update skip locked);
    v_count int;
    v_swept int := 0;
begin
    if cardinality(v_locked) = 0 then
        return 0;
    end if;
    delete from holdfast.limit_holders h using (
        select h.ctid as tid
        from holdfast.limit_holders h join holdfast.limits l on l.limit_id = h.limit_id
        where h.limit_id = any (v_locked) and not exists (
            select from holdfast.tasks t
            where t.run_id = h.run_id and t.key = h.key
                and (l.holds = 'run' or t.worker is not null))
        limit p_limit
    ) as f
    where h.ctid = f.tid;
    get diagnostics v_count = row_count;
    v_swept := v_swept + v_count;
    delete from holdfast.limit_uses u using (
        select u.ctid as tid
        from holdfast.limit_uses u join holdfast.limits l on l.limit_id = abs(u.limit_id)
        where abs(u.limit_id) = any (v_locked)
            and u.ats[cardinality(u.ats)] <= v_now - l.period
        limit p_limit
    ) as f
    where u.ctid = f.tid;
    get diagnostics v_count = row_count;
    v_swept := v_swept + v_count;
    delete from holdfast.limit_corrections c using (
        select c.ctid as tid
        from holdfast.limit_corrections c
        left join holdfast.limits l on l.limit_id = c.limit_id
        where l.limit_id is null or c.at <= v_now - l.period
        limit p_limit
    ) as f
    where c.ctid = f.tid;
    get diagnostics v_count = row_count;
    v_swept := v_swept + v_count;
    delete from holdfast.limits l
    where l.limit_id = any (v_locked) and l.removed and l.declared is null and not exists (
            select from holdfast._limited_ranges() as r
            where holdfast._concerns(l.scope, l.name, r.queue, r.handler))
        and not exists (
            select from holdfast.limit_holders h where h.limit_id = l.limit_id);
    get diagnostics v_count = row_count;
    return v_swept + v_count;
end $$;
