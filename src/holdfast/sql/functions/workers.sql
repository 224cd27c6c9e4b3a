-- The questions about workers.

-- Return the workers signed on, by id. Called by clients.
create or replace function holdfast.list_workers()
returns table (
    worker_id text, hostname text, pid int, queues text[], handlers text[], concurrency int,
    holdfast_version text, started_at bigint, heard_at bigint
)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select w.worker_id, w.hostname, w.pid, w.queues, w.handlers, w.concurrency,
        w.holdfast_version, holdfast._micros(w.started_at), holdfast._micros(w.heard_at)
    from holdfast.workers w
    order by w.worker_id
$$;

-- Count the tasks that no worker signed on may claim, by queue and handler, to 1,000 each. Jumps
-- from lane to lane through the index, so that the tasks of served lanes cost nothing. Called by
-- clients.
create or replace function holdfast.unserved()
returns table (queue text, handler text, tasks int)
language sql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
    with recursive lanes as (
        (select t.queue, t.handler from holdfast.tasks t order by t.queue, t.handler limit 1)
        union all
        select n.queue, n.handler
        from lanes l
        cross join lateral (
            select t.queue, t.handler from holdfast.tasks t
            where (t.queue, t.handler) > (l.queue, l.handler)
            order by t.queue, t.handler limit 1
        ) as n
    )
    select l.queue, l.handler, c.tasks
    from lanes l
    cross join lateral (
        select count(*)::int as tasks
        from (
            select from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler
            limit 1000
        ) as counted
    ) as c
    where not exists (
        select from holdfast.workers w
        where l.queue = any (w.queues) and l.handler = any (w.handlers))
    order by l.queue, l.handler
$$;
