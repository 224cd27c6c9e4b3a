-- Statistics by minute, as they are written.

-- Return the sums of two rows of counts. Locks nothing. Called by _record_stats and _merge_part.
create or replace function holdfast._add_counts(p_counts bigint[], p_more bigint[]) returns bigint[]
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select array_agg(coalesce(u.count, 0) + coalesce(u.more, 0) order by u.place)
    from unnest(p_counts, p_more) with ordinality as u (count, more, place)
$$;

-- Add what a writer counted in minutes; the arrays are parallel, and each count is the text of an
-- array. Refuses other numbers of counts (23514). Locks: the rows of this writer alone. Called by
-- heartbeat and _count_ended.
create or replace function holdfast._record_stats(
    p_writer text, p_minutes bigint[], p_names text[], p_counts text[]
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    insert into holdfast.stats as s (minute, name, writer, counts)
    select date_trunc('minute', holdfast._moment(u.minute), 'UTC'), u.name, p_writer,
        u.counts::bigint[]
    from unnest(p_minutes, p_names, p_counts) as u (minute, name, counts)
    order by u.minute, u.name
    on conflict (minute, seconds, name, writer) do update
    set counts = holdfast._add_counts(s.counts, excluded.counts);
end $$;

-- Count runs that ended without a worker's commit. Each backend has rows of its own: no two
-- transactions wait for one. Locks: expects the runs to be locked; rows of this backend. Called by
-- _end_each and _end_flows.
create or replace function holdfast._count_ended(
    p_now timestamptz, p_run_ids uuid[], p_status text
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_bounds constant float8[] := array[0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300, 900, 3600,
        21600, 86400, 604800];
    v_statuses constant text[] := array['completed', 'failed', 'cancelled', 'timed_out',
        'terminated', 'continued'];
    v_ended record;
begin
    select array_agg(e.name) as names, array_agg(e.counts) as counts into v_ended
    from (
        select c.name, (
            select array_agg(case
                when p.place = 1 + array_position(v_statuses, p_status) then c.runs
                when p.place = 9 then c.millis
                when p.place > 9 then (
                    select count(*) from unnest(c.buckets) as b (bucket)
                    where b.bucket = p.place - 10)
                else 0 end order by p.place)
            from generate_series(1, 25) as p (place)
        )::text as counts
        from (
            select r.name, count(*) as runs,
                coalesce(round(sum(t.took) * 1000), 0)::bigint as millis,
                array_agg(width_bucket(t.took, v_bounds)) filter (
                    where t.took is not null) as buckets
            from unnest(p_run_ids) as u (run_id)
            cross join lateral (
                select r.name, r.started_at from holdfast.runs r
                where r.run_id = u.run_id limit 1
            ) as r
            cross join lateral (
                select case when r.started_at is not null then  -- greatest() passes over nulls
                    greatest(extract(epoch from p_now - r.started_at), 0)::float8 end as took
            ) as t
            group by r.name
        ) as c
    ) as e;
    perform holdfast._record_stats('sql/' || pg_backend_pid(),
        array_fill(holdfast._micros(p_now), array[cardinality(v_ended.names)]),
        v_ended.names, v_ended.counts);
end $$;
