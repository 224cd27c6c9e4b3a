-- Look at tasks before any is claimed: which ranges of their index, and whether one is due.

-- Return the ranges of the index of tasks that a claim looks at. Called by _lock_due,
-- _expired and _has_expired.
create or replace function holdfast._ranges(p_queues text[], p_handlers text[])
returns table (queue text, handler text, priority int)
language sql immutable
begin atomic
    select q.queue, h.handler, p.priority
    from generate_series(0, 4) as p (priority), unnest(p_queues) as q (queue),
        unnest(p_handlers) as h (handler);
end;

-- Return the ranges that may have free tasks that come due between two moments. A handler without
-- such tasks costs one probe, instead of one for each priority: at any moment most handlers of an
-- app have no work. Before version 17, PostgreSQL searches once for each priority anyway, or, if it
-- planned while there were few tasks, reads all that wait and filters by priority: there, every
-- range is returned. Called by _lock_due and _look.
create or replace function holdfast._free_ranges(
    p_queues text[], p_handlers text[], p_since timestamptz, p_until timestamptz
) returns table (queue text, handler text, priority int)
language sql stable as $$
    with busy as materialized (
        select q.queue, h.handler
        from unnest(p_queues) as q (queue) cross join unnest(p_handlers) as h (handler)
        cross join lateral (
            select 1 where current_setting('server_version_num')::int < 170000
            union all
            (select 1 from holdfast.tasks t
            where t.queue = q.queue and t.handler = h.handler
                and t.priority = any ('{0,1,2,3,4}') and t.worker is null
                and t.visible_at > p_since and t.visible_at <= p_until
            limit 1)
            limit 1
        ) as t
    )
    select b.queue, b.handler, p.priority
    from busy b cross join generate_series(0, 4) as p (priority)
$$;

-- Look at free tasks that come due after p_since. `due_at` is the first moment up to p_ahead, null
-- if none is due by then; `next_at` is the first one after it. If a rival has the run of a task in
-- its cache, the task is due p_sticky later. Only a few tasks of each range are read: if there
-- are more, a moment may be too early, but none is too late; `is_whole` is false if some that are
-- due were not read. Locks nothing. Called by claim_tasks and _next_due.
create or replace function holdfast._look(
    p_rivals text[], p_queues text[], p_handlers text[], p_since timestamptz, p_ahead timestamptz,
    p_sticky interval, p_until timestamptz, out due_at timestamptz, out next_at timestamptz,
    out is_whole boolean
)
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    select min(t.at) filter (where t.at <= p_ahead), min(t.at) filter (where t.at > p_ahead),
        coalesce(bool_and(t.place < 8 or t.at > p_ahead), true)
    into due_at, next_at, is_whole
    from holdfast._free_ranges(p_queues, p_handlers, p_since, p_until) as l
    cross join lateral (
        select t.place, t.visible_at + case when t.place < 8 and t.sticky_worker = any (p_rivals)
            then p_sticky else '0' end as at
        from (
            select t.visible_at, t.sticky_worker, row_number() over (order by t.visible_at) as place
            from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler and t.priority = l.priority
                and t.worker is null and not t.paused
                and t.visible_at > p_since and t.visible_at <= p_until
                and t.visible_at < 'infinity'
            order by t.visible_at limit 8
        ) as t
    ) as t;
end $$;

-- Return when the next free task comes due that is not taken now. Locks nothing. Called by
-- claim_tasks and next_due.
create or replace function holdfast._next_due(
    p_rivals text[], p_queues text[], p_handlers text[], p_taken timestamptz, p_sticky interval,
    p_until timestamptz
) returns timestamptz
language sql stable
return (
    select least(l.due_at, l.next_at)
    from holdfast._look(
        p_rivals, p_queues, p_handlers, p_taken - p_sticky, p_taken, p_sticky, p_until) as l);
