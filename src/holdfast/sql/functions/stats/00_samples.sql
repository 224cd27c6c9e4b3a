-- Samples: how much waits and how much is worked on, looked at once a minute.

-- Return how many tasks of a queue and a handler could be claimed now, at most p_limit, and since
-- when the oldest could. Locks nothing. Called by read_gauges and sample_load.
create or replace function holdfast._due_of(p_queue text, p_handler text, p_limit int)
returns table (tasks bigint, oldest timestamptz)
language sql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    select count(*), min(t.visible_at)
    from (
        select t.visible_at
        from generate_series(0, 4) as p (priority)
        cross join lateral (
            select t.visible_at from holdfast.tasks t
            where t.queue = p_queue and t.handler = p_handler and t.priority = p.priority
                and t.worker is null and t.visible_at <= holdfast.now()
            order by t.visible_at limit p_limit
        ) as t
        limit p_limit
    ) as t
$$;

-- Write the sample of this minute; returns false if there is one. It looks at 1,000 pairs of a
-- queue and a handler, and at p_limit tasks of each that wait and as many that workers have: a
-- longer queue is not counted to its end. The 100 pairs with most of both are kept, and the sums
-- of all.
-- Locks: the minute's row of all queues, so that one caller looks. Called by workers.
create or replace function holdfast.sample_load(
    p_silent_seconds float8, p_limit int default 10000
) returns boolean
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := holdfast.now();
    v_minute timestamptz := date_trunc('minute', v_now, 'UTC');
begin
    insert into holdfast.samples (minute, queue, name, due, busy, places)
    select v_minute, '', '', 0, 0, coalesce(sum(w.concurrency), 0)
    from holdfast.workers w
    where holdfast._is_heard(w.heard_at, v_now, p_silent_seconds)
    on conflict do nothing;
    if not found then
        return false;
    end if;
    with recursive ranges as (
        select n.*, 1 as place from holdfast._next_range('', '') as n
        union all
        select n.*, l.place + 1
        from ranges l cross join lateral holdfast._next_range(l.queue, l.handler) as n
        where l.place < 1000
    ), looked as (
        select l.queue, l.handler, d.tasks as due, b.tasks as busy
        from ranges l
        cross join lateral holdfast._due_of(l.queue, l.handler, p_limit) as d
        cross join lateral (
            select count(*) as tasks from (
                select from holdfast.tasks t
                where t.queue = l.queue and t.handler = l.handler and t.worker is not null
                limit p_limit
            ) as t
        ) as b
        where l.handler <> '' and d.tasks + b.tasks > 0
    ), kept as (
        insert into holdfast.samples as s (minute, queue, name, due, busy, places)
        select v_minute, k.queue, regexp_replace(k.handler, '@[^@]*$', ''), sum(k.due),
            sum(k.busy), 0
        from (select * from looked l order by l.due + l.busy desc, l.queue, l.handler limit 100) k
        group by 2, 3
    )
    update holdfast.samples s set due = l.due, busy = l.busy
    from (
        select coalesce(sum(l.due), 0) as due, coalesce(sum(l.busy), 0) as busy from looked l
    ) as l
    where s.minute = v_minute and s.seconds = 60 and s.queue = '' and s.name = '';
    return true;
end $$;

-- Return the samples from a moment on in parts of so many seconds, counted from 0: by queue the
-- largest number of tasks that waited, and the sums of the others; with the queue '' those of all.
-- p_name: of one workflow, flow or activity alone, beside the row of all. Refuses a far moment
-- (22023). Locks nothing. Called by clients.
create or replace function holdfast.read_samples(
    p_since bigint, p_part_seconds int, p_name text
) returns table (part int, queue text, looks bigint, due bigint, busy bigint, places bigint)
language sql stable
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
as $$
    select m.part, m.queue, sum(m.looks)::bigint, max(m.due), sum(m.busy)::bigint,
        sum(m.places)::bigint
    from (
        select ((holdfast._micros(s.minute) - p_since) / (p_part_seconds * 1000000::bigint))::int
                as part,
            s.queue, max(s.looks) as looks, sum(s.due)::bigint as due, sum(s.busy) as busy,
            sum(s.places) as places
        from holdfast.samples s
        where s.minute >= holdfast._moment(holdfast._check_moment('the moment', p_since))
            and (p_name is null or s.name in ('', p_name))
        group by s.minute, s.seconds, s.queue
    ) as m
    group by m.part, m.queue
    order by m.part, m.queue
$$;

-- Merge the minutes of hours that ended two days ago; delete what is older than 90 days. At most
-- p_limit rows of each. Returns how many rows were merged or deleted.
-- Locks: the rows, skipping what others hold; then rows of hours, in order. Called by workers.
create or replace function holdfast.merge_samples(p_limit int default 1000) returns int
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_days timestamptz := date_trunc('hour', v_now - interval '48 hours', 'UTC');
    v_part holdfast.samples[];
    v_deleted int;
begin
    delete from holdfast.samples s
    where s.ctid = any (array(
        select o.ctid from holdfast.samples o
        where o.minute < v_now - interval '90 days'
        order by o.minute limit holdfast._limit(p_limit) for update skip locked));
    get diagnostics v_deleted = row_count;
    with taken as (
        delete from holdfast.samples s
        where s.ctid = any (array(
            select o.ctid from holdfast.samples o
            where o.minute < v_days and o.seconds = 60
            order by o.minute limit p_limit for update skip locked))
        returning s.*
    )
    select array_agg(t::holdfast.samples) into v_part from taken t;
    insert into holdfast.samples as s (minute, seconds, queue, name, looks, due, busy, places)
    select date_trunc('hour', p.minute, 'UTC') as hour, 3600, p.queue, p.name, sum(p.looks),
        max(p.due), sum(p.busy), sum(p.places)
    from unnest(v_part) as p
    group by hour, p.queue, p.name
    order by hour, p.queue, p.name
    on conflict (minute, seconds, queue, name) do update
    set looks = s.looks + excluded.looks, due = greatest(s.due, excluded.due),
        busy = s.busy + excluded.busy, places = s.places + excluded.places;
    return v_deleted + coalesce(cardinality(v_part), 0);
end $$;
