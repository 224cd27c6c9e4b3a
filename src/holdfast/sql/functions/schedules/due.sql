-- What schedulers have to look at. They know cron and time zones, the database does not.

-- Return the schedules that come due within p_ahead_seconds, or that have to be computed, the
-- longest overdue first. They are leased: until p_lease_seconds after they are due, schedulers that
-- look as far ahead are not given them. `expected` is the tick that the schedule is at, null if it
-- was not computed.
-- Locks: the schedules, skipping locked ones. Called by schedulers, in any number of processes.
create or replace function holdfast.due_schedules(
    p_limit int, p_ahead_seconds float8, p_lease_seconds float8
) returns table (
    name text, revision bigint, cron text, every_seconds float8, anchor bigint, timezone text,
    starts_at bigint, ends_at bigint, max_missed int, catch_up_seconds float8,
    tick_position bigint, expected bigint
)
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    return query
    with due as materialized (
        select s.ctid, s.name from holdfast.schedules s
        where s.look_at <= v_now + p_ahead_seconds * interval '1 second'
            and s.look_at < 'infinity'
        order by s.look_at
        limit p_limit
        for update skip locked
    ), leased as (
        update holdfast.schedules s
        -- Schedulers look as far ahead again: it must be beyond that until the lease is over.
        set look_at = greatest(s.look_at, v_now)
            + (p_ahead_seconds + p_lease_seconds) * interval '1 second'
        from due d
        where s.ctid = d.ctid
        returning s.*
    )
    select l.name, l.revision, l.cron, l.every, holdfast._micros(l.anchor), l.timezone,
        holdfast._micros(l.starts_at), holdfast._micros(l.ends_at), l.max_missed, l.catch_up,
        holdfast._micros(l.position), holdfast._micros(l.next_tick_at)
    from leased l
    order by l.next_tick_at nulls first, l.name;
end $$;

-- Return the backfills that are to continue, as due_schedules returns schedules. A pause of the
-- schedule does not stop them.
-- Locks: the backfills, skipping locked ones. Called by schedulers.
create or replace function holdfast.due_backfills(p_limit int, p_lease_seconds float8)
returns table (
    backfill_id uuid, name text, cron text, every_seconds float8, anchor bigint, timezone text,
    starts_at bigint, ends_at bigint, tick_position bigint, until bigint
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    return query
    with due as materialized (
        select f.ctid from holdfast.schedule_backfills f
        where holdfast._backfill_due_at(f.look_at, v_now) <= v_now and f.ended_at is null
        order by f.look_at
        limit p_limit
        for update skip locked
    ), leased as (
        update holdfast.schedule_backfills f
        set look_at = v_now + p_lease_seconds * interval '1 second'
        from due d
        where f.ctid = d.ctid
        returning f.*
    )
    select l.backfill_id, s.name, s.cron, s.every, holdfast._micros(s.anchor), s.timezone,
        holdfast._micros(s.starts_at), holdfast._micros(s.ends_at),
        holdfast._micros(l.position), holdfast._micros(l.last_at)
    from leased l
    cross join lateral (
        select * from holdfast.schedules s where s.name = l.schedule limit 1
    ) as s
    order by l.created_at, l.backfill_id;
end $$;

-- Give leases of schedules and of backfills back: other schedulers are given them at once. Those
-- that have another revision or are at another tick by now are left alone. Schedulers are told.
-- Locks: the schedules by name and the backfills, skipping what others hold. Called by schedulers
-- that stop.
create or replace function holdfast.release_schedules(
    p_names text[], p_revisions bigint[], p_expecteds bigint[], p_backfill_ids uuid[]
) returns void
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_count int;
begin
    update holdfast.schedules s
    set look_at = least(s.look_at, coalesce(nullif(s.next_tick_at, 'infinity'), v_now))
    from (
        select f.name
        from (
            select * from unnest(p_names, p_revisions, p_expecteds) as u (name, revision, expected)
            order by u.name collate "C"
        ) as u
        cross join lateral (
            select s.name, s.revision, s.next_tick_at, s.look_at from holdfast.schedules s
            where s.name = u.name for update skip locked
        ) as f
        where f.revision = u.revision and f.look_at < 'infinity'
            and holdfast._micros(f.next_tick_at) is not distinct from u.expected
    ) as f
    where s.name = f.name;
    get diagnostics v_count = row_count;
    update holdfast.schedule_backfills f set look_at = v_now
    where f.backfill_id in (
        select b.backfill_id from holdfast.schedule_backfills b
        where b.backfill_id = any (p_backfill_ids) and b.ended_at is null
        for update skip locked);
    if v_count > 0 or found then
        perform holdfast._tell_schedulers('');
    end if;
end $$;

-- Return when a backfill is to continue. A lease lasts seconds: if it ends later, the clock has
-- gone back. Called by due_backfills and next_look.
create or replace function holdfast._backfill_due_at(p_look_at timestamptz, p_now timestamptz)
returns timestamptz
language sql stable parallel safe
return case when p_look_at > p_now + interval '1 minute' then p_now else p_look_at end;

-- Return when schedulers have to look at schedules and at backfills again, null for never, and
-- whether ticks wait for ends of runs. Locks nothing. Called by schedulers.
create or replace function holdfast.next_look(
    out next_look_at bigint, out backfill_at bigint, out has_buffered boolean
)
language plpgsql stable
as $$
begin
    next_look_at := (
        select holdfast._micros(s.look_at) from holdfast.schedules s
        where s.look_at < 'infinity' order by s.look_at limit 1);
    backfill_at := (
        select holdfast._micros(min(holdfast._backfill_due_at(f.look_at, holdfast.now())))
        from holdfast.schedule_backfills f where f.ended_at is null);
    has_buffered := exists (
        select from holdfast.schedules s where s.buffered > 0 and s.paused_at is null)
        or exists (select from holdfast._asked_in_pauses());
end $$;

-- Let schedules begin again from now that the clock left behind when it was set back. They have
-- dealt with ticks that are more than a minute ahead, or are leased or put off for longer than
-- anything is: without this, they would be silent until the clock is there again. Ticks that were
-- skipped and have not come yet are forgotten; what was started or sent is not fired again.
-- Locks: the schedules, skipping locked ones; their buckets. Called by sweep_buckets.
create or replace function holdfast._begin_again(p_now timestamptz) returns void
language plpgsql
as $$
declare
    v_soon timestamptz := p_now + interval '1 minute';
    v_names text[];
begin
    with ahead as materialized (
        select s.ctid from holdfast.schedules s
        where s.paused_at is null
            and (s.position > v_soon
                or s.look_at < 'infinity' and s.look_at > v_soon
                and (s.next_tick_at < s.look_at - interval '1 minute'
                    or s.error is not null and s.look_at > v_soon + interval '10 minutes'))
        for update skip locked
    ), begun as (
        update holdfast.schedules s
        set position = least(s.position, p_now), next_tick_at = null, look_at = p_now, error = null
        from ahead a
        where s.ctid = a.ctid
        returning s.name
    )
    select array_agg(b.name) into v_names from begun b;
    if v_names is null then
        return;
    end if;
    delete from holdfast.schedule_buckets b
    where b.schedule = any (v_names) and b.tick_at > p_now and b.outcome = 'skipped'
        and b.origin = 'tick';
    perform holdfast._tell_schedulers('');
end $$;

-- Delete buckets whose retention is over, and backfills that ended a day ago, at most p_limit of
-- each. Returns how many buckets. What the clock left behind when it was set back begins again.
-- Locks: as _begin_again; as _catch_up; then the rows, skipping locked ones. Called by schedulers.
create or replace function holdfast.sweep_buckets(p_limit int) returns int
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_count int;
begin
    perform holdfast._begin_again(v_now);
    perform holdfast._catch_up(v_now);
    delete from holdfast.schedule_backfills f
    where f.backfill_id in (
        select o.backfill_id from holdfast.schedule_backfills o
        where o.ended_at < v_now - interval '1 day' limit p_limit for update skip locked);
    with over as materialized (
        select b.ctid from holdfast.schedule_buckets b
        where b.delete_after <= v_now and b.outcome <> 'buffered'
        order by b.delete_after limit p_limit
        for update skip locked
    )
    delete from holdfast.schedule_buckets b using over o where b.ctid = o.ctid;
    get diagnostics v_count = row_count;
    return v_count;
end $$;
