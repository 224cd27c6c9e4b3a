-- Who sweeps, and what is to be swept.

-- Begin a pass of the sweeper, for p_lease_seconds. Returns 'begun'; 'busy' if another process
-- sweeps; 'done' if a pass ended less than half of p_interval_seconds ago; 'archive' if the runs of
-- this database are archived, and not where p_archive says. An archive is noted by the first that
-- has one. A pass that began or ended in the future says nothing: the clock has gone back.
--
-- Refuses nulls other than of the archive (22004), and lengths of time that are not allowed
-- (22023).
-- Locks: the row of the sweeper; a process that finds it locked is busy. Called by workers and
-- clients.
create or replace function holdfast.begin_deletions(
    p_holder text, p_interval_seconds float8, p_lease_seconds float8 default 60,
    p_archive text default null
) returns text
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_now timestamptz := holdfast.now();
    v_row holdfast.sweeper;
begin
    perform holdfast._check_given('the name of a sweeper', p_holder is not null);
    perform holdfast._check_given('an interval', p_interval_seconds is not null);
    perform holdfast._check_seconds('an interval', p_interval_seconds);
    perform holdfast._check_given('the length of a lease', p_lease_seconds is not null);
    perform holdfast._check_seconds('a lease', p_lease_seconds);
    select * into v_row from holdfast.sweeper s for update skip locked;
    if not found or (v_row.held_until > v_now and v_row.holder <> p_holder
        and v_row.begun_at <= v_now)  -- later: the clock has gone back
    then
        return 'busy';
    elsif v_row.ended_at > v_now - p_interval_seconds / 2 * interval '1 second'
        and v_row.ended_at <= v_now
    then
        return 'done';
    elsif v_row.archive is not null and v_row.archive is distinct from p_archive then
        return 'archive';
    end if;
    update holdfast.sweeper
    set holder = p_holder, held_until = v_now + p_lease_seconds * interval '1 second',
        begun_at = v_now, archive = coalesce(p_archive, archive);
    return 'begun';
end $$;

-- Record what came of a pass: how many runs were deleted, whether there is more to do, and the
-- error that ended it. Refuses nulls other than of the error (22004).
-- Locks: the row of the sweeper. Called by workers and clients.
create or replace function holdfast.end_deletions(
    p_holder text, p_deleted bigint, p_has_more boolean, p_error text default null
) returns void
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    perform holdfast._check_given('the name of a sweeper', p_holder is not null);
    perform holdfast._check_given('the number of runs', p_deleted is not null);
    perform holdfast._check_given('has_more', p_has_more is not null);
    update holdfast.sweeper s
    set holder = case when s.holder <> p_holder then s.holder end,
        held_until = case when s.holder <> p_holder then s.held_until end,
        ended_at = case when p_has_more then s.ended_at else v_now end,
        deleted = s.deleted + p_deleted,
        failed_at = case when p_error is not null then v_now end, error = p_error;
end $$;

-- Return who sweeps, the last passes, and what is due: at most p_limit runs are counted.
-- Refuses a negative limit (22023). Locks nothing. Called by clients.
create or replace function holdfast.get_sweeper(p_limit int default 10000)
returns table (
    holder text, begun_at bigint, ended_at bigint, deleted bigint, failed_at bigint, error text,
    archive text, due bigint, oldest bigint
)
language plpgsql stable
set plan_cache_mode = force_custom_plan
as $$
begin
    return query
    select case when s.held_until > holdfast.now() then s.holder end,
        holdfast._micros(s.begun_at), holdfast._micros(s.ended_at), s.deleted,
        holdfast._micros(s.failed_at), s.error, s.archive, d.due, holdfast._micros(d.oldest)
    from holdfast.sweeper s
    cross join lateral (
        select count(*) as due, nullif(min(r.delete_after), '-infinity') as oldest
        from (
            select r.delete_after from holdfast.runs r
            where r.delete_after <= holdfast.now()
            order by r.delete_after limit holdfast._limit(p_limit)
        ) as r
    ) as d;
end $$;

-- Return what the sweeper would do with the first p_limit runs that are due, by workflow: how many
-- runs, since when the oldest of them is due, and how many of them are kept and why. Refuses a
-- negative limit (22023). Locks nothing. Called by clients.
create or replace function holdfast.preview_sweep(p_limit int default 100000)
returns table (
    name text, due bigint, oldest bigint, kept_for_child bigint, kept_for_successor bigint,
    kept_for_retry bigint
)
language plpgsql stable
set plan_cache_mode = force_custom_plan
as $$
declare
    v_run_ids uuid[] := array(
        select r.run_id from holdfast.runs r
        where r.delete_after <= holdfast.now() and r.status <> 'running'
        order by r.delete_after limit holdfast._limit(p_limit));
begin
    return query
    select r.name, count(*), holdfast._micros(nullif(min(r.delete_after), '-infinity')),
        count(*) filter (where k.reason = 'child'),
        count(*) filter (where k.reason = 'successor'),
        count(*) filter (where k.reason = 'retry')
    from unnest(v_run_ids) as u (run_id)
    cross join lateral (
        select r.name, r.delete_after from holdfast.runs r where r.run_id = u.run_id limit 1
    ) as r
    left join holdfast._kept_runs(v_run_ids) as k on k.run_id = u.run_id
    group by r.name
    order by r.name collate "C";
end $$;
