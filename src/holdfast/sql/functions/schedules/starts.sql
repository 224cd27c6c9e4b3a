-- What ticks start, and what is recorded of them.

-- Lock the starts of the flows that ticks start, as _lock_starts: before rows of runs. Called by
-- _fire_round and start_buffered.
create or replace function holdfast._lock_flow_starts(p_ticks holdfast._tick[]) returns void
language plpgsql
as $$
declare
    v_starts holdfast._start[] := array(
        select holdfast._new_start(null, s.target, null, s.version)
        from unnest(p_ticks) as u
        cross join lateral (
            select s.kind, s.target, s.version from holdfast.schedules s
            where s.name = u.schedule limit 1
        ) as s
        where s.kind = 'flow');
begin
    if cardinality(v_starts) > 0 then
        perform holdfast._lock_starts(v_starts);
    end if;
end $$;

-- Start the runs of ticks whose outcome is 'started', or send what they send. The key of a run is
-- that of its tick, so its id follows from schedule, tick and target: a tick has one run. `ticks`
-- are all of them, with the runs; a tick that cannot start is 'failed', also if a rule of the
-- workflow refuses the start. A rule may lead to another run. `notices` are (topic, payload).
-- Locks: expects the schedules locked, and the starts of the flows; as _send_ticks, if some send;
-- as _start_ruled_runs, if there are rules; the ids that it inserts, in order. Called by
-- _fire_round and start_buffered.
create or replace function holdfast._start_ticks(
    p_now timestamptz, p_ticks holdfast._tick[],
    out ticks holdfast._tick[], out notices text[]
)
language plpgsql
as $$
declare
    v_starts holdfast._start[];
    v_created uuid[];
    v_ruled record;
    v_asked uuid[];
    v_leads uuid[];
    v_excess text[];
    v_excess_errors text[];
    v_refused text[];
    v_errors text[];
    v_told text[];
    v_sent text[];
begin
    if exists (
        select from unnest(p_ticks) as u
        cross join lateral (
            select s.kind from holdfast.schedules s where s.name = u.schedule limit 1
        ) as s
        where s.kind in ('topic', 'queue'))
    then
        select s.ticks, s.notices into p_ticks, v_sent
        from holdfast._send_ticks(p_now, p_ticks) as s;
    end if;
    v_starts := array(
        select n.start from holdfast._starts_of(p_now, p_ticks) as n where n.kind = 'workflow');
    if cardinality(v_starts) > 0 then
        if exists (
            select from unnest(v_starts) as u
            where exists (select from holdfast.start_rules r where r.name = u.name))
        then
            select s.created, s.errors, s.asked, s.leads into v_ruled
            from holdfast._start_ruled_runs(p_now, v_starts) as s;
            v_created := v_ruled.created;
            v_asked := v_ruled.asked;
            v_leads := v_ruled.leads;
            select array_agg(n.schedule), array_agg(u.unnest ->> 'message')
            into v_excess, v_excess_errors
            from rows from (unnest(v_starts), unnest(v_ruled.errors)) as u
            join holdfast._starts_of(p_now, p_ticks) as n on (n.start).run_id = u.run_id
            where u.unnest is not null;
        else
            v_created := holdfast._start_runs(p_now, v_starts);
        end if;
        select array_agg(distinct array[case when q.is_due
            then holdfast._hint_topic('starts', q.runs) else 'work' end, q.queue]) into notices
        from (
            select coalesce(u.queue, holdfast._queue_of(u.run_id)) as queue,
                u.visible_at <= p_now as is_due, count(*) as runs
            from unnest(v_starts) as u
            where u.run_id = any (v_created)
            group by 1, 2
        ) as q;
    end if;

    if exists (
        select from unnest(p_ticks) as u
        cross join lateral (
            select s.kind from holdfast.schedules s where s.name = u.schedule limit 1
        ) as s
        where s.kind = 'flow')
    then
        select f.refused, f.errors, f.notices into v_refused, v_errors, v_told
        from holdfast._start_tick_flows(p_now, p_ticks) as f;
        notices := notices || v_told;
    end if;
    notices := notices || v_sent;
    ticks := array(
        select (u.schedule, u.tick_at, u.origin, u.overlap, u.open_run_ids, u.buffered,
            case when f.error is null then u.outcome else 'failed' end, u.cause,
            case when f.error is null and u.outcome = 'started' then coalesce(l.run_id, n.run_id)
                end, u.stopped_run_id, coalesce(f.error, u.error), u.message_id,
            u.reached)::holdfast._tick
        from unnest(p_ticks) as u
        cross join lateral (
            select holdfast.keyed_run_id(
                s.target, u.schedule || '@' || holdfast._tick_text(u.tick_at)) as run_id
            from holdfast.schedules s where s.name = u.schedule limit 1
        ) as n
        left join unnest(v_asked, v_leads) as l (asked, run_id) on l.asked = n.run_id
        left join unnest(v_refused || v_excess, v_errors || v_excess_errors)
            as f (schedule, error) on f.schedule = u.schedule);
end $$;

-- Start the runs of flows among the ticks. `refused` are the schedules whose flows do not exist, or
-- cannot map over the input, and `errors` say so; the others start. `notices` are (topic, payload).
-- Locks: as _start_ticks, which calls it.
create or replace function holdfast._start_tick_flows(
    p_now timestamptz, p_ticks holdfast._tick[],
    out refused text[], out errors text[], out notices text[]
)
language plpgsql
as $$
declare
    v_schedules text[];
    v_starts holdfast._start[];
begin
    select array_agg(n.schedule), array_agg(n.start) into v_schedules, v_starts
    from holdfast._starts_of(p_now, p_ticks) as n
    where n.kind = 'flow';
    if v_starts is null then
        return;
    end if;
    v_starts := holdfast._lock_starts(v_starts);
    select array_agg(v_schedules[r.place]) filter (where r.kind is not null),
        array_agg(r.message) filter (where r.kind is not null),
        array_agg(r.start) filter (where r.kind is null)
    into refused, errors, v_starts
    from holdfast._judge_starts(v_starts) as r;
    if v_starts is not null then
        select s.notices into notices from holdfast._start_flows(p_now, v_starts) as s;
    end if;
end $$;

-- Return the runs that ticks start whose outcome is 'started'. Every run has its schedule and its
-- tick among its headers: `ctx.scheduled_at` is read from them. Locks nothing. Called by
-- _start_ticks and _start_tick_flows.
create or replace function holdfast._starts_of(p_now timestamptz, p_ticks holdfast._tick[])
returns table (schedule text, kind text, start holdfast._start)
language plpgsql stable
as $$
begin
    return query
    select s.name, s.kind, holdfast._new_start(
        holdfast.keyed_run_id(s.target, s.name || '@' || t.written), s.target, s.input, s.version,
        s.name || '@' || t.written, s.queue, s.priority::int,
        greatest(holdfast._start_of_tick(s.name, u.tick_at, s.jitter), p_now), s.timeout,
        s.retention, s.tags,
        holdfast._tick_headers(holdfast._successor_headers(s.headers, null), s.name, u.tick_at))
    from unnest(p_ticks) as u
    cross join lateral (
        select * from holdfast.schedules s where s.name = u.schedule limit 1
    ) as s
    cross join lateral (select holdfast._tick_text(u.tick_at) as written) as t
    where u.outcome = 'started';
end $$;

-- Write what became of ticks into their buckets and their schedules. A tick that replaces those
-- which wait says so in their buckets.
-- Locks: expects the schedules locked; their buckets. Called by _fire_round and start_buffered.
create or replace function holdfast._write_buckets(p_now timestamptz, p_ticks holdfast._tick[])
returns void
language plpgsql
as $$
begin
    if exists (
        select from unnest(p_ticks) as u where u.overlap like '%_running' and u.buffered > 0)
    then
        update holdfast.schedule_buckets b set outcome = 'skipped', cause = 'replaced'
        from unnest(p_ticks) as u
        where u.overlap like '%_running' and u.buffered > 0 and b.schedule = u.schedule
            and b.outcome = 'buffered';
    end if;
    update holdfast.schedule_buckets b  -- ranges of skipped ticks: the first one is fired now
    set tick_at = b.tick_at + interval '1 microsecond', ticks = b.ticks - 1
    from unnest(p_ticks) as u
    where b.schedule = u.schedule and b.tick_at = u.tick_at and b.until is not null;
    insert into holdfast.schedule_buckets as b (schedule, tick_at, ticks, outcome, origin, run_id,
        stopped_run_id, cause, error, message_id, reached, handled_at, delete_after)
    select s.name, u.tick_at, 1, u.outcome, u.origin, u.run_id, u.stopped_run_id, u.cause,
        u.error, u.message_id, u.reached, p_now, p_now + s.bucket_retention * interval '1 second'
    from unnest(p_ticks) as u
    cross join lateral (
        select s.name, s.bucket_retention from holdfast.schedules s
        where s.name = u.schedule limit 1
    ) as s
    on conflict (schedule, tick_at) do update
    set outcome = excluded.outcome, run_id = excluded.run_id, cause = excluded.cause,
        stopped_run_id = coalesce(excluded.stopped_run_id, b.stopped_run_id),
        origin = case when b.outcome = 'buffered' then b.origin else excluded.origin end,
        error = excluded.error, message_id = excluded.message_id,
        reached = excluded.reached, handled_at = excluded.handled_at,
        delete_after = excluded.delete_after;
    update holdfast.schedules s
    set open_run_ids = (u.open_run_ids || case when u.run_id is not null then array[u.run_id]
                else '{}'::uuid[] end)[
            greatest(1, cardinality(u.open_run_ids) + (u.run_id is not null)::int - 99):],
        buffered = case when u.overlap like '%_running' then 0 else u.buffered end
            + (u.outcome = 'buffered')::int,
        last_tick_at = greatest(s.last_tick_at, u.tick_at),
        last_run_id = coalesce(u.run_id, s.last_run_id)
    from unnest(p_ticks) as u
    cross join lateral (
        select s.ctid from holdfast.schedules s where s.name = u.schedule limit 1
    ) as f
    where s.ctid = f.ctid;
end $$;
