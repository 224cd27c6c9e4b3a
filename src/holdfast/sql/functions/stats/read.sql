-- Statistics by minute, as they are read, merged and deleted.

-- Return what was counted from a moment on in parts of so many seconds, by workflow, the newest
-- part first: `minute` is where a part begins, `merged` how many rows are added up in it. Parts are
-- counted from the moment. The newest p_limit rows are added up: if `merged` makes p_limit
-- together, the oldest are missing. p_names null: of all workflows. `seconds` is for clients of
-- 0.1.0, which look for it: the time of the longest of these rows. Refuses a far moment (22023).
-- Locks nothing. Called by clients.
create or replace function holdfast.read_stats(
    p_since bigint, p_names text[], p_limit int, p_part_seconds int default 60
) returns table (minute bigint, seconds int, name text, counts bigint[], merged bigint)
language sql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
    select p_since + p.part * p_part_seconds * 1000000::bigint, max(p.seconds), p.name, array[
            sum(p.counts[1]), sum(p.counts[2]), sum(p.counts[3]), sum(p.counts[4]),
            sum(p.counts[5]), sum(p.counts[6]), sum(p.counts[7]), sum(p.counts[8]),
            sum(p.counts[9]), sum(p.counts[10]), sum(p.counts[11]), sum(p.counts[12]),
            sum(p.counts[13]), sum(p.counts[14]), sum(p.counts[15]), sum(p.counts[16]),
            sum(p.counts[17]), sum(p.counts[18]), sum(p.counts[19]), sum(p.counts[20]),
            sum(p.counts[21]), sum(p.counts[22]), sum(p.counts[23]), sum(p.counts[24]),
            sum(p.counts[25])
        ]::bigint[], count(*)
    from (
        select (holdfast._micros(s.minute) - p_since) / (p_part_seconds * 1000000::bigint) as part,
            s.seconds, s.name, s.counts
        from holdfast.stats s
        where s.minute >= holdfast._moment(holdfast._check_moment('the moment', p_since))
            and (p_names is null or s.name = any (p_names))
        order by s.minute desc limit holdfast._limit(p_limit)
    ) as p
    group by p.part, p.name
    order by p.part desc, p.name
$$;

-- Merge the rows of different writers of minutes that ended five minutes ago, and the minutes of
-- hours that ended two days ago; delete what is older than 90 days. At most p_limit rows of each.
-- Summarize the newest events in their index by time. Returns how many rows were merged or deleted.
-- Locks: the rows, skipping what others hold; then rows of merged counts, in order; then what
-- _summarize_events locks. Called by workers.
create or replace function holdfast.merge_stats(p_limit int default 1000) returns int
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_days timestamptz := date_trunc('hour', v_now - interval '48 hours', 'UTC');
    v_part holdfast.stats[];
    v_taken int := 0;
    v_deleted int;
begin
    with old as (
        delete from holdfast.stats s
        where s.ctid = any (array(
            select o.ctid from holdfast.stats o
            where o.minute < v_now - interval '90 days'
            order by o.minute limit holdfast._limit(p_limit) for update skip locked))
        returning 1
    )
    select count(*) into v_deleted from old;

    with taken as (
        delete from holdfast.stats s
        where s.ctid = any (array(
            select o.ctid from holdfast.stats o
            where o.minute < v_now - interval '6 minutes' and o.writer <> ''
            order by o.minute limit p_limit for update skip locked))
        returning s.*
    )
    select array_agg(t::holdfast.stats) into v_part from taken t;
    v_taken := v_taken + coalesce(cardinality(v_part), 0);
    perform holdfast._merge_part(v_part, 60);

    with taken as (
        delete from holdfast.stats s
        where s.ctid = any (array(
            select o.ctid from holdfast.stats o
            where o.minute < v_days and o.seconds = 60
            order by o.minute limit p_limit for update skip locked))
        returning s.*
    )
    select array_agg(t::holdfast.stats) into v_part from taken t;
    v_taken := v_taken + coalesce(cardinality(v_part), 0);
    perform holdfast._merge_part(v_part, 3600);
    perform holdfast._summarize_events();
    return v_deleted + v_taken;
end $$;

-- Let the index of events by time have all of them: recent_events reads whatever it does not have.
-- PostgreSQL does this by itself when it has an autovacuum worker to spare, and forgets it if too
-- much is asked for at once. It runs with the rights of the owner, because nobody else may do it.
-- While something else holds the lock, such as a vacuum, which does the same, it does nothing.
-- Locks: the table of events, in the mode SHARE UPDATE EXCLUSIVE, which reads and writes do not
-- meet. Called by merge_stats.
create or replace function holdfast._summarize_events() returns void
language plpgsql security definer
reset plan_cache_mode reset enable_seqscan
set lock_timeout = '50ms'
as $$
begin
    perform brin_summarize_new_values(c.oid)
    from pg_index i
    join pg_class c on c.oid = i.indexrelid and c.relname = 'events_by_time'
    where i.indrelid = (select e.tableoid from holdfast.events e limit 1);
exception
    when lock_not_available or insufficient_privilege then
        null;
end $$;

-- Take what was counted of an app's runs that ended without a worker's commit: each count is given
-- to one caller, and is kept with the merged rows. So workers that show metrics count these ends,
-- too. At most p_limit rows; those that are older than some minutes are not there any more.
-- Locks: the rows, skipping what others hold; then merged rows, in order. Called by workers.
create or replace function holdfast.take_counts(p_app text, p_limit int default 1000)
returns table (minute bigint, name text, counts bigint[])
language plpgsql
as $$
declare
    v_part holdfast.stats[];
begin
    with taken as (
        delete from holdfast.stats s
        where s.ctid = any (array(
            select o.ctid from holdfast.stats o
            where o.writer <> '' and starts_with(o.writer, 'sql/')
                and starts_with(o.name, p_app || '/')
            order by o.minute limit holdfast._limit(p_limit) for update skip locked))
        returning s.*
    )
    select array_agg(t::holdfast.stats) into v_part from taken t;
    if v_part is null then
        return;
    end if;
    perform holdfast._merge_part(v_part, 60);
    return query select holdfast._micros(p.minute), p.name, p.counts from unnest(v_part) as p;
end $$;

-- Add rows that were taken out to the merged rows of their minutes, or of their hours. Locks: the
-- merged rows, in order. Called by merge_stats and take_counts.
create or replace function holdfast._merge_part(p_rows holdfast.stats[], p_seconds int)
returns void
language plpgsql
as $$
begin
    insert into holdfast.stats as s (minute, seconds, name, writer, counts)
    select m.minute, p_seconds, m.name, '', array_agg(m.total order by m.place)
    from (
        select date_trunc(case p_seconds when 60 then 'minute' else 'hour' end, r.minute, 'UTC')
            as minute, r.name, c.place, sum(c.count)::bigint as total
        from unnest(p_rows) as r
        cross join lateral unnest(r.counts) with ordinality as c (count, place)
        group by 1, r.name, c.place
    ) as m
    group by m.minute, m.name
    order by m.minute, m.name
    on conflict (minute, seconds, name, writer) do update
    set counts = holdfast._add_counts(s.counts, excluded.counts);
end $$;
