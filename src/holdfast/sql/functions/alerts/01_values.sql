-- What alerts look at. Each costs a few looks through an index.

-- Return the counts of a workflow in a time until now, or, without a name, of all workflows of an
-- app, minute by minute. It begins with the minute in which the time began; minutes of the last two
-- days are not merged yet. Inlined: only what is asked for is added up. Locks nothing. Called by
-- _seen_of.
create or replace function holdfast._counts_within(
    p_app text, p_name text, p_now timestamptz, p_seconds float8
) returns table (counts bigint[])
language sql stable
begin atomic
    select s.counts
    from holdfast.stats s
    where p_name = '' and s.seconds = 60 and starts_with(s.name, p_app || '/')
        and s.minute between date_trunc('minute', p_now - p_seconds * interval '1 second', 'UTC')
            and p_now
    union all
    select s.counts
    from generate_series(date_trunc('minute', p_now - p_seconds * interval '1 second', 'UTC'),
        p_now, interval '1 minute') as m (minute)
    cross join lateral (
        select s.counts from holdfast.stats s
        where s.minute = m.minute and s.seconds = 60 and s.name = p_name
        offset 0
    ) as s
    where p_name <> '';
end;

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
begin
    return case p_alert.kind
        when 'failed' then (
            select coalesce(sum(c.counts[3] + c.counts[5]), 0)  -- failed, timed out
            from holdfast._counts_within(
                p_alert.app, p_alert.subject, p_now, p_alert.within_seconds) as c)
        when 'slow' then (
            select holdfast._p95(array[
                sum(c.counts[10]), sum(c.counts[11]), sum(c.counts[12]), sum(c.counts[13]),
                sum(c.counts[14]), sum(c.counts[15]), sum(c.counts[16]), sum(c.counts[17]),
                sum(c.counts[18]), sum(c.counts[19]), sum(c.counts[20]), sum(c.counts[21]),
                sum(c.counts[22]), sum(c.counts[23]), sum(c.counts[24]), sum(c.counts[25])
                ]::bigint[])
            from holdfast._counts_within(
                p_alert.app, p_alert.subject, p_now, p_alert.within_seconds) as c)
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
