-- Queries about workers.

-- Return the workers signed on, by id. Called by clients.
create or replace function holdfast.list_workers()
returns table (
    worker_id text, hostname text, pid int, queues text[], handlers text[], concurrency int,
    holdfast_version text, started_at bigint, heard_at bigint, threads int[],
    consumes text[], hints boolean, listens boolean
)
language sql stable
as $$
    select w.worker_id, w.hostname, w.pid, w.queues, w.handlers, w.concurrency,
        w.holdfast_version, holdfast._micros(w.started_at), holdfast._micros(w.heard_at),
        w.threads, w.consumes, w.hints, w.listens
    from holdfast.workers w
    order by w.worker_id
$$;

-- Return the queue and handler that come next in either index of tasks. Called by unserved,
-- _active_runs, read_gauges, sample_load and _oldest_of.
create or replace function holdfast._next_range(p_queue text, p_handler text)
returns table (queue text, handler text)
language sql stable
set enable_seqscan = off
as $$
    select l.queue, l.handler
    from (
        (select t.queue, t.handler from holdfast.tasks t
        where (t.queue, t.handler) > (p_queue, p_handler) and t.worker is null
        order by t.queue, t.handler limit 1)
        union all
        (select t.queue, t.handler from holdfast.tasks t
        where (t.queue, t.handler) > (p_queue, p_handler) and t.worker is not null
        order by t.queue, t.handler limit 1)
    ) as l
    order by l.queue, l.handler limit 1
$$;

-- Return the number of tasks that no live worker may claim, by queue and handler, at most 1,000
-- each. A worker that was not heard for p_silent_seconds counts as dead: where no other worker
-- lives, a dead one stays signed on. With a null, all that are signed on count as live. Not counted
-- are open approvals, which have no handler, and turns of flows, which are visible at infinity, as
-- no task of a step is. The search jumps from range to range through the index, so that tasks that
-- are served cost nothing. Called by clients.
create or replace function holdfast.unserved(p_silent_seconds float8 default 8)
returns table (queue text, handler text, tasks int)
language sql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
    select holdfast._check_seconds('the silence of a worker', p_silent_seconds);
    with recursive ranges as (
        select n.* from holdfast._next_range('', '') as n
        union all
        select n.* from ranges l cross join lateral holdfast._next_range(l.queue, l.handler) as n
    )
    select l.queue, l.handler, c.tasks
    from ranges l
    cross join lateral (
        select exists (select from holdfast.flows f where f.handler = l.handler) as is_flow
    ) as f
    cross join lateral (
        select count(*)::int as tasks
        from (
            (select from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler and t.worker is null
                and not f.is_flow limit 1000)
            union all
            (select from generate_series(0, 4) as p (priority)
            cross join lateral (
                select from holdfast.tasks t
                where t.queue = l.queue and t.handler = l.handler and t.priority = p.priority
                    and t.worker is null
                    and (t.visible_at < 'infinity' or t.limited_at is not null) limit 1000
            ) as t
            where f.is_flow limit 1000)
            union all
            (select from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler and t.worker is not null limit 1000)
            limit 1000
        ) as counted
    ) as c
    where l.handler <> '' and c.tasks > 0 and not exists (
        select from holdfast.workers w
        where l.queue = any (w.queues) and l.handler = any (w.handlers)
            and (p_silent_seconds is null
                or holdfast._is_heard(w.heard_at, holdfast.now(), p_silent_seconds)))
    order by l.queue, l.handler
$$;
