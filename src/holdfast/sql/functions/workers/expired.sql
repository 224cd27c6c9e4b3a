-- Find tasks whose leases have expired.

-- Return expired leases: the first ones of each range, and, with `suspect`, the first task that has
-- lost three workers; it `waits` if the worker holds such a task already.
-- Stable, so that it sees the same tasks as the statement that calls it: one that is given back
-- meanwhile is not found twice. Locks nothing. Called by _lock_due.
create or replace function holdfast._expired(
    p_worker text, p_queues text[], p_handlers text[], p_limit int, p_now timestamptz,
    p_leased timestamptz, p_spared text[]
) returns table (run_id uuid, key text, priority smallint, visible_at timestamptz,
    suspect boolean, waits boolean)
language plpgsql stable
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    return query
    with found as materialized (
        select t.*
        from holdfast._ranges(p_queues, p_handlers) as l
        cross join lateral (
            (select t.run_id, t.key, t.priority, t.visible_at, false as suspect
            from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler and t.priority = l.priority
                and t.worker is not null and not t.paused
                and t.visible_at > p_leased and t.visible_at <= p_now
                and t.worker <> all (p_spared)
                and (t.attempts < 3 or t.key > '' and not holdfast._lost_before(t.run_id, t.key, 2))
            order by t.visible_at limit p_limit)
            union all
            (select t.run_id, t.key, t.priority, t.visible_at, true
            from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler and t.priority = l.priority
                and t.worker is not null and not t.paused
                and t.visible_at > p_leased and t.visible_at <= p_now
                and t.worker <> all (p_spared)
                and t.attempts >= 3
                and (t.key = '' or holdfast._lost_before(t.run_id, t.key, 2))
            order by t.visible_at, t.run_id, t.key limit 1)
        ) as t
    )
    select f.*, false from found f where not f.suspect
    union all
    (select f.*, holdfast._holds_suspect(p_worker, p_now)
    from found f
    where f.suspect
    order by f.priority, f.visible_at, f.run_id, f.key limit 1);
end $$;

-- Return false if no lease of these queues and handlers has expired between two moments.
-- Locks nothing. Called by claim_tasks.
create or replace function holdfast._has_expired(
    p_queues text[], p_handlers text[], p_since timestamptz, p_until timestamptz
) returns boolean
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    return exists (
        select from holdfast._ranges(p_queues, p_handlers) as l
        cross join lateral (
            select from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler and t.priority = l.priority
                and t.worker is not null and t.visible_at > p_since and t.visible_at <= p_until
            limit 1
        ) as t);
end $$;
