-- Statistics by minute, as they are written.

-- Return the sums of two rows of counts. Locks nothing. Called by _record_stats, _count_ended and
-- _merge_part.
create or replace function holdfast._add_counts(p_counts bigint[], p_more bigint[]) returns bigint[]
language sql immutable
as $$
    select array_agg(coalesce(u.count, 0) + coalesce(u.more, 0) order by u.place)
    from unnest(p_counts, p_more) with ordinality as u (count, more, place)
$$;

-- Add what a writer counted in minutes; the arrays are parallel, and each count is the text of an
-- array. Refuses other numbers of counts (23514). Locks: the rows of this writer alone. Called by
-- heartbeat.
create or replace function holdfast._record_stats(
    p_writer text, p_minutes bigint[], p_names text[], p_counts text[]
) returns void
language plpgsql
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

-- Return the place, from 0, of a duration in the distribution of durations; see
-- holdfast/types/stats.py. Called by _count_ended.
create or replace function holdfast._bucket(p_seconds float8) returns int
language sql immutable parallel safe
return width_bucket(p_seconds, array[0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300, 900, 3600,
    21600, 86400, 604800]::float8[]);

-- Count runs that ended without a worker's commit. Each backend has rows of its own: no two of them
-- wait for one, and take_counts passes over those that are locked.
-- Locks: expects the runs to be locked; rows of this backend. Called by _end_each, _end_flows,
-- _end_linear_steps and _end_last_step.
create or replace function holdfast._count_ended(
    p_now timestamptz, p_run_ids uuid[], p_status text
) returns void
language plpgsql
as $$
declare
    v_run record;
begin
    if cardinality(p_run_ids) = 1 then  -- most calls: if it has its row, only that is changed
        select r.name, array_position(
                '{completed,failed,cancelled,timed_out,terminated,continued}', p_status) + 1
                as status,
            greatest(extract(epoch from p_now - r.started_at), 0)::float8 as took
        into v_run
        from holdfast.runs r where r.run_id = p_run_ids[1] and r.started_at is not null;
        update holdfast.stats s
        set counts[v_run.status] = s.counts[v_run.status] + 1,
            counts[9] = s.counts[9] + round(v_run.took * 1000)::bigint,
            counts[10 + holdfast._bucket(v_run.took)]
                = s.counts[10 + holdfast._bucket(v_run.took)] + 1
        where s.minute = date_trunc('minute', p_now, 'UTC') and s.seconds = 60
            and s.name = v_run.name and s.writer = 'sql/' || pg_backend_pid();
        if found then
            return;
        end if;
    end if;
    insert into holdfast.stats as s (minute, name, writer, counts)
    select date_trunc('minute', p_now, 'UTC'), t.name, 'sql/' || pg_backend_pid(), array[
            0,
            count(*) filter (where p_status = 'completed'),
            count(*) filter (where p_status = 'failed'),
            count(*) filter (where p_status = 'cancelled'),
            count(*) filter (where p_status = 'timed_out'),
            count(*) filter (where p_status = 'terminated'),
            count(*) filter (where p_status = 'continued'),
            0,
            coalesce(round(sum(t.took) * 1000), 0)::bigint,
            count(*) filter (where t.bucket = 0), count(*) filter (where t.bucket = 1),
            count(*) filter (where t.bucket = 2), count(*) filter (where t.bucket = 3),
            count(*) filter (where t.bucket = 4), count(*) filter (where t.bucket = 5),
            count(*) filter (where t.bucket = 6), count(*) filter (where t.bucket = 7),
            count(*) filter (where t.bucket = 8), count(*) filter (where t.bucket = 9),
            count(*) filter (where t.bucket = 10), count(*) filter (where t.bucket = 11),
            count(*) filter (where t.bucket = 12), count(*) filter (where t.bucket = 13),
            count(*) filter (where t.bucket = 14), count(*) filter (where t.bucket = 15)]
    from (
        select r.name, r.took, holdfast._bucket(r.took) as bucket
        from unnest(p_run_ids) as u (run_id)
        cross join lateral (
            select r.name, case when r.started_at is not null then  -- greatest() passes over nulls
                greatest(extract(epoch from p_now - r.started_at), 0)::float8 end as took
            from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as r
        offset 0
    ) as t
    group by t.name
    order by t.name
    on conflict (minute, seconds, name, writer) do update
    set counts = holdfast._add_counts(s.counts, excluded.counts);
end $$;
