-- What alerts look at. Each costs a few looks through an index.

-- Return what was counted of a workflow in a time until now, or, without a name, of all workflows
-- of an app; null if nothing was. It begins with the minute in which the time began; minutes of the
-- last two days are not merged yet. Locks nothing. Called by _seen_of.
create or replace function holdfast._counts_within(
    p_app text, p_name text, p_now timestamptz, p_seconds float8
) returns bigint[]
language plpgsql stable
as $$
declare
    v_first timestamptz := date_trunc('minute', p_now - p_seconds * interval '1 second', 'UTC');
    v_counts bigint[];
begin
    if p_name = '' then
        select array_agg(t.total order by t.place) into v_counts
        from (
            select c.place, sum(c.count)::bigint as total
            from holdfast.stats s
            cross join lateral unnest(s.counts) with ordinality as c (count, place)
            where s.minute between v_first and p_now and s.seconds = 60
                and starts_with(s.name, p_app || '/')
            group by c.place
        ) as t;
        return v_counts;
    end if;
    select array_agg(t.total order by t.place) into v_counts
    from (
        select c.place, sum(c.count)::bigint as total
        from generate_series(v_first, p_now, interval '1 minute') as m (minute)
        cross join lateral (
            select s.counts from holdfast.stats s
            where s.minute = m.minute and s.seconds = 60 and s.name = p_name
            offset 0
        ) as s
        cross join lateral unnest(s.counts) with ordinality as c (count, place)
        group by c.place
    ) as t;
    return v_counts;
end $$;

-- Return about how many seconds 95 of 100 runs took less than, from their distribution; null
-- without any. The rule is that of holdfast/types/stats.py. Called by _seen_of.
create or replace function holdfast._p95(p_buckets bigint[]) returns float8
language sql immutable
as $$
    select round((b.low * (b.high / b.low) ^ ((b.wanted - b.before) / b.count))::numeric, 4)
    from (
        select u.count, 0.95::float8 * sum(u.count) over () as wanted,
            coalesce(sum(u.count) over (order by u.place
                rows between unbounded preceding and 1 preceding), 0)::float8 as before,
            case u.place when 1 then 0.001 else n.bounds[u.place - 1] end as low,
            n.bounds[least(u.place, cardinality(n.bounds))] as high, u.place
        from (select array[0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300, 900, 3600,
            21600, 86400, 604800]::float8[] as bounds) as n
        cross join unnest(p_buckets) with ordinality as u (count, place)
    ) as b
    where b.count > 0 and b.before + b.count >= b.wanted
    order by b.place limit 1
$$;

-- Return for how many seconds the oldest task of a queue that could be claimed has waited, 0 if
-- there is none. Locks nothing. Called by _seen_of.
create or replace function holdfast._oldest_of(p_queue text, p_now timestamptz) returns float8
language sql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    with recursive ranges as (
        select n.* from holdfast._next_range(p_queue, '') as n where n.queue = p_queue
        union all
        select n.*
        from ranges l cross join lateral holdfast._next_range(l.queue, l.handler) as n
        where n.queue = p_queue
    )
    select coalesce(extract(epoch from p_now - min(t.visible_at)), 0)::float8
    from ranges l
    cross join generate_series(0, 4) as p (priority)
    cross join lateral (
        select t.visible_at from holdfast.tasks t
        where t.queue = l.queue and t.handler = l.handler and t.priority = p.priority
            and t.worker is null and t.visible_at <= p_now
        order by t.visible_at limit 1
    ) as t
$$;

-- Return what an alert sees now, see AlertInfo of holdfast/types/alerts.py; null for nothing.
-- Locks nothing. Called by look_at_alerts.
create or replace function holdfast._seen_of(
    p_alert holdfast.alerts, p_now timestamptz, p_silent_seconds float8
) returns float8
language plpgsql stable
as $$
declare
    v_counts bigint[];
begin
    if p_alert.within_seconds is not null then
        v_counts := holdfast._counts_within(
            p_alert.app, p_alert.subject, p_now, p_alert.within_seconds);
    end if;
    return case p_alert.kind
        when 'failed' then coalesce(v_counts[3] + v_counts[5], 0)  -- failed, timed out
        when 'slow' then holdfast._p95(v_counts[10:])
        when 'backlog' then holdfast._oldest_of(p_alert.subject, p_now)
        when 'stuck' then (
            select count(*) from (
                select from holdfast.tasks t
                where t.stuck is not null and starts_with(t.handler,
                    case p_alert.subject when '' then p_alert.app || '/'
                        else p_alert.subject || '@' end)
                limit 10000
            ) as found)
        else (
            select count(*) from holdfast.workers w
            where p_alert.subject = any (w.queues)
                and holdfast._is_heard(w.heard_at, p_now, p_silent_seconds))
        end;
end $$;
