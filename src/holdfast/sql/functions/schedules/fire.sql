-- Ticks that come due. A scheduler has computed them; here is decided what becomes of each.

-- Move schedules from the tick that they are expected at to the next one. Of each, the ticks of
-- p_tick_… are fired in their order, and those of p_skip_… recorded, as ranges if there are
-- several (a count of null: not counted). All ticks up to the position are dealt with then. A
-- schedule that has another revision, is at another tick, is paused or deleted, or that another
-- transaction has, is left alone; `moved` names the others. With an error, the schedule is not
-- moved: it shows the error, and is looked at again after ten minutes. Moments are microseconds.
-- Notices are (topic, payload): those that it could not send itself, with p_tell, the schema's
-- name.
-- Locks: the schedules by name, skipping locked ones; then as _fire_round. It gives up (55P03) if
-- another transaction has a row of a run for long: the caller repeats the call with fewer
-- schedules. Called by schedulers, in any number of processes.
create or replace function holdfast.fire_schedules(
    p_names text[], p_revisions bigint[], p_expecteds bigint[], p_positions bigint[],
    p_nexts bigint[], p_errors text[],
    p_tick_names text[], p_tick_ats bigint[],
    p_skip_names text[], p_skip_firsts bigint[], p_skip_lasts bigint[], p_skip_counts int[],
    p_skip_causes text[], p_tell text default null,
    out now bigint, out moved text[], out notices text[]
)
language plpgsql
set lock_timeout = '500ms'
as $$
declare
    v_now timestamptz := holdfast.now();
    v_rounds int;
    v_ticks holdfast._tick[];
begin
    now := holdfast._micros(v_now);
    moved := holdfast._lock_at_ticks(v_now, p_names, p_revisions, p_expecteds, p_positions);
    if cardinality(moved) = 0 then
        return;
    end if;
    if cardinality(moved) < cardinality(p_names) then
        select array_agg(u.name), array_agg(u.at) into p_tick_names, p_tick_ats
        from unnest(p_tick_names, p_tick_ats) as u (name, at) where u.name = any (moved);
    end if;
    insert into holdfast.schedule_buckets (schedule, tick_at, until, ticks, outcome, origin,
        cause, handled_at, delete_after)
    select s.name, holdfast._moment(u.first),
        case when u.first < u.last then holdfast._moment(u.last) end, u.count, 'skipped', 'tick',
        u.cause, v_now, v_now + s.bucket_retention * interval '1 second'
    from unnest(p_skip_names, p_skip_firsts, p_skip_lasts, p_skip_counts, p_skip_causes)
        as u (name, first, last, count, cause)
    cross join lateral (
        select s.name, s.bucket_retention from holdfast.schedules s where s.name = u.name limit 1
    ) as s
    where u.name = any (moved)
    on conflict do nothing;

    select coalesce(max(t.ticks), 0) into v_rounds
    from (select count(*) as ticks from unnest(p_tick_names) as u (name) group by u.name) as t;
    for v_round in 1..v_rounds loop
        select array_agg((t.name, holdfast._moment(t.at), 'tick', null, null, null, null, null,
            null, null, null, null, null)::holdfast._tick) into v_ticks
        from (
            select u.name, u.at, row_number() over (partition by u.name order by u.at) as round
            from unnest(p_tick_names, p_tick_ats) as u (name, at)
        ) as t
        where t.round = v_round;
        notices := notices || holdfast._fire_round(v_now, v_ticks);
    end loop;

    update holdfast.schedules s
    set position = case when u.error is null then holdfast._moment(u.position)
            else s.position end,
        next_tick_at = case when u.error is null
            then coalesce(holdfast._moment(u.next), 'infinity') else 'infinity' end,
        look_at = case when u.error is null then coalesce(holdfast._moment(u.next), 'infinity')
            else v_now + interval '10 minutes' end,
        error = u.error
    from unnest(p_names, p_positions, p_nexts, p_errors) as u (name, position, next, error)
    cross join lateral (
        select s.ctid from holdfast.schedules s where s.name = u.name limit 1
    ) as f
    where s.ctid = f.ctid
        and (cardinality(moved) = cardinality(p_names) or u.name = any (moved));
    notices := holdfast._tell(p_tell, notices);
end $$;

-- Lock the schedules that have these revisions and are at these ticks, and return their names. One
-- whose position is more than a second in the future is left out: its tick has not come yet.
-- Locks: the schedules by name, skipping locked ones. Called by fire_schedules.
create or replace function holdfast._lock_at_ticks(
    p_now timestamptz, p_names text[], p_revisions bigint[], p_expecteds bigint[],
    p_positions bigint[]
) returns text[]
language plpgsql
as $$
begin
    return array(
        select s.name
        from (
            select * from unnest(p_names, p_revisions, p_expecteds, p_positions)
                as u (name, revision, expected, position)
            order by u.name collate "C"
        ) as u
        cross join lateral (
            select s.name, s.revision, s.next_tick_at, s.paused_at from holdfast.schedules s
            where s.name = u.name for update skip locked
        ) as s
        where s.revision = u.revision and s.paused_at is null
            and holdfast._micros(s.next_tick_at) is not distinct from u.expected
            and coalesce(holdfast._moment(u.position) <= p_now + interval '1 second', true));
end $$;

-- Fire one tick of each of these schedules, and write its bucket. A tick that has started, was sent
-- or is buffered is left alone, and so is one with a bucket, unless it is asked for. Where the tick
-- has no policy of its own, the schedule's holds. Returns (topic, payload) notices.
-- Locks: expects the schedules locked; the starts of flows, shared; turn rows as _lock_family, of
-- runs that are stopped; events and runs of these; FOR SHARE, the runs whose ends ticks wait for;
-- as _send_ticks; the ids of the new runs, in order. Called by fire_schedules, fire_backfill and
-- trigger_schedule.
create or replace function holdfast._fire_round(p_now timestamptz, p_ticks holdfast._tick[])
returns text[]
language plpgsql
as $$
declare
    v_ticks holdfast._tick[] := holdfast._with_open(p_ticks);
    v_notices text[];
    v_told text[];
    v_waits uuid[];
begin
    if v_ticks is null then
        return null;
    end if;
    perform holdfast._lock_flow_starts(v_ticks);
    if exists (
        select from unnest(v_ticks) as u
        where cardinality(u.open_run_ids) > 0
            and u.overlap in ('cancel_running', 'terminate_running'))
    then
        v_notices := holdfast._stop_open(p_now, v_ticks);
        v_ticks := holdfast._with_open(v_ticks);
    end if;
    v_waits := array(
        select distinct o.run_id
        from unnest(v_ticks) as u
        cross join lateral unnest(u.open_run_ids) as o (run_id)
        where u.overlap in ('buffer_one', 'buffer_all', 'cancel_running'));
    if cardinality(v_waits) > 0 then
        -- A run that ended meanwhile is seen by the next statement.
        perform holdfast._register_waiters(
            v_waits, array_fill('schedules'::text, array[cardinality(v_waits)]));
        v_ticks := holdfast._with_open(v_ticks);
    end if;
    select s.ticks, s.notices into v_ticks, v_told
    from holdfast._start_ticks(p_now, holdfast._judged(v_ticks)) as s;
    perform holdfast._write_buckets(p_now, v_ticks);
    return v_notices || v_told;
end $$;

-- Return the ticks that are to be fired, with the policy that holds, with the runs of the schedule
-- that have not ended, and with the number of ticks that wait; null for none. Locks nothing. Called
-- by _fire_round.
create or replace function holdfast._with_open(p_ticks holdfast._tick[])
returns holdfast._tick[]
language plpgsql stable
as $$
declare
    v_ticks holdfast._tick[];
begin
    select array_agg((u.schedule, u.tick_at, u.origin, coalesce(u.overlap, s.overlap), r.run_ids,
        s.buffered, null, null, null, coalesce(u.stopped_run_id,
            case when coalesce(u.overlap, s.overlap) like '%_running'
                then r.run_ids[cardinality(r.run_ids)] end), null, null, null)::holdfast._tick)
    into v_ticks
    from (
        select u.* from unnest(p_ticks) as u
        where not exists (
            select from holdfast.schedule_buckets b
            where b.schedule = u.schedule and b.tick_at = u.tick_at and b.until is null
                and (u.origin = 'tick' or b.outcome in ('started', 'buffered', 'sent'))
            offset 0)
    ) as u
    cross join lateral (
        select s.overlap, s.open_run_ids, s.buffered from holdfast.schedules s
        where s.name = u.schedule limit 1
    ) as s
    cross join lateral (
        select case when cardinality(s.open_run_ids) = 0 then s.open_run_ids
            else holdfast._still_open(s.open_run_ids)
            end as run_ids
    ) as r;
    return v_ticks;
end $$;

-- Return which of these runs have not ended, in the order given; of one that continued as new, the
-- newest of its chain. Locks nothing. Called by _with_open, _lock_buffering and _buffering.
create or replace function holdfast._still_open(p_run_ids uuid[]) returns uuid[]
language plpgsql stable
as $$
begin
    if exists (
        select from unnest(p_run_ids) as u (run_id)
        cross join lateral (
            select r.status from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as r
        where r.status = 'continued')
    then
        p_run_ids := array(
            select n.newest from holdfast.newest_runs(p_run_ids) as n
            group by n.newest order by min(array_position(p_run_ids, n.run_id)));
    end if;
    return array(
        select u.run_id from unnest(p_run_ids) with ordinality as u (run_id, place)
        cross join lateral (
            select r.status from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as r
        where r.status = 'running' order by u.place);
end $$;

-- Stop the open runs of schedules whose ticks demand it. Returns (topic, payload) notices.
-- Locks: turn rows as _lock_family, of the runs and their parents; events and runs. Called by
-- _fire_round.
create or replace function holdfast._stop_open(p_now timestamptz, p_ticks holdfast._tick[])
returns text[]
language plpgsql
as $$
declare
    v_why json := holdfast._reason('the next tick of its schedule');
    v_notices text[];
    v_told text[];
    v_cancelled uuid[];
    v_terminated uuid[];
begin
    select coalesce(array_agg(distinct o.run_id)
            filter (where u.overlap = 'cancel_running'), '{}'),
        coalesce(array_agg(distinct o.run_id)
            filter (where u.overlap = 'terminate_running'), '{}')
    into v_cancelled, v_terminated
    from unnest(p_ticks) as u
    cross join lateral unnest(u.open_run_ids) as o (run_id)
    where u.overlap in ('cancel_running', 'terminate_running');
    perform holdfast._lock_family(v_cancelled || v_terminated
        || holdfast._parents(v_cancelled || v_terminated), v_terminated);
    if cardinality(v_terminated) > 0 then
        select e.notices into v_notices
        from holdfast._end_each(p_now, v_terminated, 'terminated', 'WorkflowTerminated',
            array_fill(v_why, array[cardinality(v_terminated)])) as e;
    end if;
    if cardinality(v_cancelled) > 0 then
        select c.notices into v_told
        from holdfast._cancel(p_now, v_cancelled,
            array_fill(v_why, array[cardinality(v_cancelled)])) as c;
    end if;
    return v_notices || v_told;
end $$;

-- Return the ticks with what becomes of them by their policies: 'started' means that it is to be
-- started. In a pause, only buffered ticks that were asked for come first. Locks nothing. Called by
-- _fire_round.
create or replace function holdfast._judged(p_ticks holdfast._tick[]) returns holdfast._tick[]
language plpgsql stable
as $$
begin
    return array(
        select (u.schedule, u.tick_at, u.origin, u.overlap, u.open_run_ids, u.buffered,
            coalesce(j.verdict, 'skipped'),
            case when j.verdict is null then
                case u.overlap when 'buffer_all' then 'buffer_full' else 'overlap' end end,
            null, u.stopped_run_id, null, null, null)::holdfast._tick
        from unnest(p_ticks) as u
        cross join lateral (
            select case when u.buffered > 0 and s.paused_at is not null
                then holdfast._asked(s.name) else u.buffered end as buffered
            from holdfast.schedules s where s.name = u.schedule limit 1
        ) as w
        cross join lateral (
            select case
                when u.overlap in ('allow', 'terminate_running')
                    or cardinality(u.open_run_ids) = 0
                        and (w.buffered = 0 or u.overlap = 'cancel_running') then 'started'
                when u.overlap = 'cancel_running'
                    or u.overlap = 'buffer_one' and w.buffered = 0
                    or u.overlap = 'buffer_all' and w.buffered < 10000 then 'buffered'
                end as verdict
        ) as j);
end $$;
