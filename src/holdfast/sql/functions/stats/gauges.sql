-- What a monitor asks for again and again. What an answer costs does not grow with the tables.

-- Return how things stand: (gauge, name, number). `in_flight`: runs that have not ended, by
-- workflow, of a thousand names at most. `due` and `oldest_due`: tasks that could be claimed now,
-- by queue, and for how many microseconds the oldest has waited. `approvals_open`, `runs_stuck`.
-- Each count ends at p_limit, in a queue for each handler. Locks nothing. Called by clients.
create or replace function holdfast.read_gauges(p_limit int)
returns table (gauge text, name text, number bigint)
language sql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    with recursive names as (
        (select r.name, 1 as place from holdfast.runs r order by r.name limit 1)
        union all
        select n.name, l.place + 1
        from names l
        cross join lateral (
            select r.name from holdfast.runs r where r.name > l.name order by r.name limit 1
        ) as n
        where l.place < 1000
    ), ranges as (
        select n.* from holdfast._next_range('', '') as n
        union all
        select n.* from ranges l cross join lateral holdfast._next_range(l.queue, l.handler) as n
    ), due as (
        select l.queue, sum(d.tasks)::bigint as tasks, min(d.oldest) as oldest
        from ranges l
        cross join lateral holdfast._due_of(l.queue, l.handler, p_limit) as d
        where l.handler <> ''
        group by l.queue
    )
    select 'in_flight', n.name, c.runs
    from names n
    cross join unnest(array['running']) as s (status)
    cross join lateral (
        select count(*) as runs from (
            select from holdfast.runs r where r.name = n.name and r.status = s.status limit p_limit
        ) as found
    ) as c
    union all
    select 'due', d.queue, least(d.tasks, p_limit) from due d
    union all
    select 'oldest_due', d.queue, coalesce(
        holdfast._micros(holdfast.now()) - holdfast._micros(d.oldest), 0)
    from due d
    union all
    select 'approvals_open', '', count(*) from (
        select from holdfast.tasks t where t.kind = 'approval' limit p_limit) as found
    union all
    select 'runs_stuck', '', count(*) from (
        select from holdfast.tasks t where t.stuck is not null limit p_limit) as found
$$;
