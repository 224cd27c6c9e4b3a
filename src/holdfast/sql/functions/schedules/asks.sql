-- What users ask of schedules: a tick now. And ticks that wait for ends of runs.

-- Fire a tick of a schedule now, also if the schedule is paused. The tick's moment is p_at, by
-- default now; repeated with the same moment it starts one run. p_overlap replaces the policy of
-- the schedule. Returns the tick's bucket, as list_buckets does; nothing if there is no such
-- schedule. The notices, (topic, payload), wake workers. Refuses values that are not allowed
-- (22004, 22023).
-- Locks: the schedule; then as _fire_round. Called by clients and users.
create or replace function holdfast.trigger_schedule(
    p_name text, p_at bigint default null, p_overlap text default null
) returns table (
    schedule text, tick_at bigint, until bigint, ticks int, outcome text, origin text, run_id uuid,
    stopped_run_id uuid, cause text, error text, handled_at bigint, message_id bigint,
    reached int, notices text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_name text := holdfast._schedule_name(p_name);
    v_at timestamptz := coalesce(
        holdfast._moment(holdfast._check_moment('a tick', p_at)), v_now);
    v_notices text[];
begin
    perform holdfast._check_overlap(coalesce(p_overlap, 'skip'));
    perform from holdfast.schedules s where s.name = v_name for update;
    if not found then
        return;
    end if;
    perform holdfast._check_overlap_of(v_name, p_overlap);
    v_notices := holdfast._fire_round(v_now, array[(v_name, v_at, 'trigger', p_overlap, null, null,
        null, null, null, null, null, null, null)::holdfast._tick]);
    return query
    select b.*, holdfast._as_work(v_notices)
    from holdfast.list_buckets(v_name, holdfast._micros(v_at) + 1, 1) as b;
end $$;

-- Start buffered ticks of schedules that have no open run any more, the oldest tick of each, of at
-- most p_limit schedules; of one that is paused, only those that were asked for. With p_run_ids,
-- only of the schedules that started these runs. Returns how many schedules had such a tick;
-- notices are (topic, payload).
-- Locks: the schedules, skipping locked ones; as _await_open; then as _start_ticks. Called by
-- schedulers.
create or replace function holdfast.start_buffered(
    p_limit int, p_run_ids uuid[] default null, out started int, out notices text[]
)
language plpgsql
set lock_timeout = '500ms'
as $$
declare
    v_now timestamptz := holdfast.now();
    v_names text[] := holdfast._lock_buffering(p_limit, p_run_ids);
    v_paused text[] := array(
        select u.name from unnest(v_names) as u (name)
        cross join lateral (
            select s.paused_at from holdfast.schedules s where s.name = u.name limit 1
        ) as s
        where s.paused_at is not null);
    v_ticks holdfast._tick[];
begin
    started := 0;
    perform holdfast._await_open(v_names);  -- a run that ended meanwhile is seen by what follows
    select array_agg((b.schedule, b.tick_at, b.origin, 'buffer_all', s.open, s.buffered, 'started',
            null, null, b.stopped_run_id, null, null, null)::holdfast._tick)
            filter (where cardinality(s.open) = 0)
    into v_ticks
    from holdfast._buffering(v_names) as s
    cross join lateral (
        select b.schedule, b.tick_at, b.origin, b.stopped_run_id from holdfast.schedule_buckets b
        where b.schedule = s.name and b.outcome = 'buffered'
            and (b.origin <> 'tick' or s.name <> all (v_paused))
        order by b.tick_at limit 1
    ) as b;
    if v_ticks is null then
        return;
    end if;
    perform holdfast._lock_flow_starts(v_ticks);
    select s.ticks, holdfast._as_work(s.notices) into v_ticks, notices
    from holdfast._start_ticks(v_now, v_ticks) as s;
    started := cardinality(v_ticks);
    perform holdfast._write_buckets(v_now, v_ticks);
    update holdfast.schedules s set buffered = s.buffered - 1
    where s.name in (select u.schedule from unnest(v_ticks) as u);
    perform holdfast._await_open(v_names);
end $$;

-- Register schedulers with the open runs of schedules that have buffered ticks.
-- Locks: the runs FOR SHARE: one that is about to end is waited for. Called by start_buffered.
create or replace function holdfast._await_open(p_names text[]) returns void
language plpgsql
as $$
declare
    v_waits uuid[] := array(
        select distinct o.run_id
        from holdfast._buffering(p_names) as s
        cross join lateral unnest(s.open) as o (run_id));
begin
    if cardinality(v_waits) > 0 then
        perform holdfast._register_waiters(
            v_waits, array_fill('schedules'::text, array[cardinality(v_waits)]));
    end if;
end $$;

-- Lock schedules with buffered ticks that may start: with p_run_ids those that started these runs,
-- else those whose runs have ended. Returns their names.
-- Locks: the schedules by name, skipping locked ones. Called by start_buffered.
create or replace function holdfast._lock_buffering(p_limit int, p_run_ids uuid[])
returns text[]
language plpgsql
as $$
begin
    if p_run_ids is not null then
        return array(
            select s.name
            from (
                select distinct r.headers ->> 'holdfast-schedule' as name
                from unnest(p_run_ids) as u (run_id)
                cross join lateral (
                    select r.headers from holdfast.runs r where r.run_id = u.run_id limit 1
                ) as r
                where r.headers ->> 'holdfast-schedule' is not null
                order by 1
            ) as n
            cross join lateral (
                select s.name, s.buffered, s.paused_at from holdfast.schedules s
                where s.name = n.name for update skip locked
            ) as s
            where s.buffered > 0 and (s.paused_at is null or holdfast._asked(s.name) > 0));
    end if;
    return array(
        select s.name from holdfast.schedules s
        where s.buffered > 0 and s.paused_at is null
            and cardinality(holdfast._still_open(s.open_run_ids)) = 0
        order by s.name
        limit p_limit
        for update skip locked)
    || array(
        select s.name
        from (select p.name from holdfast._asked_in_pauses() as p (name) order by 1) as p
        cross join lateral (
            select s.name, s.paused_at, s.open_run_ids from holdfast.schedules s
            where s.name = p.name for update skip locked
        ) as s
        where s.paused_at is not null
            and cardinality(holdfast._still_open(s.open_run_ids)) = 0
        limit p_limit);
end $$;

-- Count the buffered ticks of a schedule that were asked for: a pause does not hold them. Called by
-- _judged, _lock_buffering and _asked_in_pauses.
create or replace function holdfast._asked(p_schedule text) returns int
language sql stable
as $$
    select count(*)::int from holdfast.schedule_buckets b
    where b.schedule = p_schedule and b.outcome = 'buffered' and b.origin <> 'tick'
$$;

-- Return the paused schedules with buffered ticks that were asked for. The search jumps from one to
-- the next through the index of buffered ticks. Called by _lock_buffering and next_look.
create or replace function holdfast._asked_in_pauses() returns setof text
language sql stable
set enable_seqscan = off
as $$
    with recursive names as (
        (select b.schedule from holdfast.schedule_buckets b
        where b.outcome = 'buffered' order by b.schedule limit 1)
        union all
        select n.schedule
        from names o
        cross join lateral (
            select b.schedule from holdfast.schedule_buckets b
            where b.schedule > o.schedule and b.outcome = 'buffered'
            order by b.schedule limit 1
        ) as n
    )
    select n.schedule
    from names n
    cross join lateral (
        select s.paused_at from holdfast.schedules s where s.name = n.schedule limit 1
    ) as s
    where s.paused_at is not null and holdfast._asked(n.schedule) > 0
$$;

-- Return the schedules of these that have buffered ticks, with their runs that have not ended.
-- Locks nothing. Called by start_buffered and _await_open.
create or replace function holdfast._buffering(p_names text[])
returns table (name text, open uuid[], buffered int)
language plpgsql stable
as $$
begin
    return query
    select s.name, holdfast._still_open(s.open_run_ids), s.buffered
    from unnest(p_names) as u (name)
    cross join lateral (
        select s.name, s.open_run_ids, s.buffered from holdfast.schedules s
        where s.name = u.name limit 1
    ) as s
    where s.buffered > 0;
end $$;
