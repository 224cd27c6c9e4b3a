-- Leases: give them back, renew them with heartbeats, and take them from silent workers.

-- Give tasks back unfinished: due again at a moment, or at once. The attempt does not count. If
-- another worker has the lease now, the task is left alone; an activity that was asked to stop is
-- deleted, or if its run waits for its end, its lease expires: a claim tells the run. A turn that
-- is stuck is due after a pause that doubles with each try in a row, from 2 s to 5 min, or at the
-- given moment if that is later; other tasks are due at the given moment, as newer code may know
-- them. Returns the queues that have work again.
-- Locks: turn rows by run_id, then other task rows by (run_id, key). Called by workers that stop,
-- or whose run is stuck.
create or replace function holdfast.release_tasks(
    p_worker text, p_run_ids uuid[], p_keys text[], p_leases int[],
    p_visible_ats bigint[], p_stuck text[]
) returns setof text
language plpgsql
as $$
begin
    perform from (  -- a statement of its own, as _lock_tasks
        select * from unnest(p_run_ids, p_keys) as u (run_id, key)
        order by u.key <> '', u.run_id, u.key
    ) as u
    cross join lateral (
        select from holdfast.tasks t where t.run_id = u.run_id and t.key = u.key for update
    ) as t;
    return query
    with held as materialized (
        select t.ctid, t.cancelled, t.is_waited_out, u.visible_at, u.stuck
        from unnest(p_run_ids, p_keys, p_leases, p_visible_ats, p_stuck)
            as u (run_id, key, lease_no, visible_at, stuck)
        cross join lateral (
            select t.ctid, t.worker, t.lease_no, t.cancelled,
                t.cancelled and holdfast._is_waited_out(t.payload) as is_waited_out
            from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key limit 1
        ) as t
        where t.worker = p_worker and t.lease_no = u.lease_no
    ), forgotten as (
        delete from holdfast.tasks t using held h
        where t.ctid = h.ctid and h.cancelled and not h.is_waited_out
    ), expired as (
        update holdfast.tasks t set visible_at = holdfast.now()
        from held h where t.ctid = h.ctid and h.is_waited_out
    ), released as (
        update holdfast.tasks t
        set worker = null, sticky_worker = null, attempts = greatest(t.attempts - 1, 0),
            visible_at = case when h.stuck is null or t.key <> ''
                then coalesce(holdfast._moment(h.visible_at), holdfast.now())
                else greatest(holdfast._moment(h.visible_at), holdfast.now()
                    + least(2 ^ (t.stuck_tries + 1), 300) * interval '1 second') end,
            stuck = h.stuck, innocent = false,
            stuck_tries = least(t.stuck_tries + (h.stuck is not null and t.key = '')::int, 16),
            claimed_idx = case t.kind when 'step' then 0 else t.claimed_idx end
        from held h
        where t.ctid = h.ctid and not h.cancelled
        returning t.queue
    )
    select distinct r.queue from released r;
end $$;

-- Return the duties of maintenance that may have something to do within ten seconds; the services
-- of a worker do them. Each is one look through an index. `other releases` is not a duty: it says
-- that workers of several releases are signed on. Locks nothing. Called by heartbeat.
create or replace function holdfast._duties(p_now timestamptz, p_silent_seconds float8)
returns text[]
language plpgsql stable
set enable_bitmapscan = off
as $$
declare
    v_soon timestamptz := p_now + interval '10 seconds';
begin
    return array_remove(array[
        case when exists (select from holdfast.workers w
            where not holdfast._is_heard(w.heard_at, p_now, p_silent_seconds / 2))
            then 'workers' end,
        case when (select r.deadline_at from holdfast.runs r
                where r.deadline_at is not null and r.status = 'running'
                order by r.deadline_at limit 1) <= v_soon
            or (select t.deadline_at from holdfast.tasks t where t.deadline_at is not null
                order by t.deadline_at limit 1) <= v_soon
            then 'deadlines' end,
        case when exists (select from holdfast.schedules s
                where s.look_at < 'infinity' and s.look_at <= v_soon)
            or exists (select from holdfast.schedules s
                where s.buffered > 0 and s.paused_at is null)
            or exists (select from holdfast.schedule_backfills f where f.ended_at is null)
            then 'schedules' end,
        case when (select d.visible_at from holdfast.http_deliveries d where d.dead_at is null
            order by d.visible_at limit 1) <= v_soon
            then 'deliveries' end,
        case when exists (select from holdfast.deliveries d where d.visible_at <= p_now)
            or exists (select from holdfast.deduplications d where d.expires_at <= p_now)
            or exists (select from holdfast.kept_messages k where k.delete_after <= p_now)
            then 'queues' end,
        case when exists (select from holdfast.freed_singletons) then 'singletons' end,
        case when exists (select from holdfast.start_keys k where k.expires_at < p_now)
            then 'start keys' end,
        case when exists (select from holdfast.limits) then 'limits' end,
        case when exists (select from holdfast.stats s
            where s.writer <> '' and starts_with(s.writer, 'sql/'))
            then 'ends' end,
        case when exists (select from holdfast.alerts a
            where holdfast._alert_is_due(a.look_at, p_now))
            then 'alerts' end,
        case when (select min(w.holdfast_version) <> max(w.holdfast_version)
            from holdfast.workers w)
            then 'other releases' end
    ], null);
end $$;

-- Record that a worker lives, and renew the leases that it names (run, key, number). Not all leases
-- of the worker: after a claim with a lost answer, it does not execute the tasks. `lost` are the
-- positions in the arrays, from 1, of leases that another worker has now, `news` those of runs with
-- more events than known, and `cancelled` those of activities that must stop. p_details is what
-- activities reported last, null if the database has that. p_threads says how the worker's threads
-- are used: how many exist, are in use, run abandoned attempts, and are waited for. p_consumes are
-- the message queues of its consumers, null for workers that do not say so. If a worker
-- missed two heartbeats of p_interval_seconds, or was heard in the future, it had a gap:
-- heard_since becomes now. If another transaction has locked a task's row, the lease is renewed the
-- next time. `duties` are those that may have something to do within ten seconds, null without
-- p_silent_seconds, after which a worker is called silent; `sign on` is one if the worker was not
-- known: it starts, was called silent, or the database was set back to before it. p_hints says if
-- hints reach the worker, p_listens if notifications do; null if it reads no hints. The p_stat_…
-- are parallel arrays of what the worker counted, see _record_stats.
-- Locks: rows of clock_steps; the worker's row; its rows of stats; task rows by (run_id, key),
-- skipping locked ones. Called by workers.
create or replace function holdfast.heartbeat(
    p_worker text, p_hostname text, p_pid int, p_queues text[], p_handlers text[],
    p_concurrency int, p_version text, p_started_at bigint, p_lease_seconds float8,
    p_run_ids uuid[], p_keys text[], p_leases int[], p_known int[],
    p_details json[] default null, p_interval_seconds float8 default 2,
    p_threads int[] default null,
    p_stat_minutes bigint[] default null, p_stat_names text[] default null,
    p_stat_counts text[] default null, p_consumes text[] default null,
    p_silent_seconds float8 default null, p_hints boolean default null,
    p_listens boolean default null,
    out now bigint, out lost int[], out news int[], out cancelled int[], out duties text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_held record;
    v_is_new boolean;
begin
    now := holdfast._micros(v_now);
    perform holdfast._watch_clock(v_now);
    insert into holdfast.workers as w (worker_id, hostname, pid, queues, handlers, concurrency,
        holdfast_version, started_at, heard_at, heard_since, threads, consumes,
        hints, listens)
    values (p_worker, p_hostname, p_pid, p_queues, p_handlers, p_concurrency, p_version,
        coalesce(holdfast._moment(p_started_at), v_now), v_now, v_now, p_threads, p_consumes,
        p_hints, p_listens)
    on conflict (worker_id) do update
    set hostname = excluded.hostname, pid = excluded.pid, queues = excluded.queues,
        handlers = excluded.handlers, concurrency = excluded.concurrency,
        holdfast_version = excluded.holdfast_version, heard_at = excluded.heard_at,
        threads = excluded.threads, consumes = excluded.consumes, hints = excluded.hints,
        listens = excluded.listens,
        heard_since = case when holdfast._is_heard(w.heard_at, v_now, 2 * p_interval_seconds)
            then w.heard_since else v_now end
    returning w.xmax = 0 into v_is_new;  -- an update locks the row first, which sets it
    if p_stat_minutes is not null then
        perform holdfast._record_stats(p_worker, p_stat_minutes, p_stat_names, p_stat_counts);
    end if;
    if p_silent_seconds is not null then
        duties := holdfast._duties(v_now, p_silent_seconds)
            || case when v_is_new then array['sign on'] end;
    end if;
    if cardinality(p_run_ids) = 0 then
        return;
    end if;

    -- The lock is a statement of its own: one that found a row changed would not see its new place.
    select array_agg(l.run_id) as run_ids, array_agg(l.key) as keys, array_agg(l.details) as details
    into v_held
    from (
        select u.run_id, u.key, u.details
        from (
            select * from unnest(p_run_ids, p_keys, p_leases, p_details)
                as u (run_id, key, lease_no, details)
            order by u.run_id, u.key
        ) as u
        cross join lateral (
            select t.worker, t.lease_no from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key for update skip locked
        ) as t
        where t.worker = p_worker and t.lease_no = u.lease_no
    ) as l;
    update holdfast.tasks t
    set visible_at = v_now + p_lease_seconds * interval '1 second',
        heartbeat = coalesce(f.details, t.heartbeat), innocent = false
    from unnest(v_held.run_ids, v_held.keys, v_held.details) as h (run_id, key, details)
    cross join lateral (
        select t.ctid, h.details from holdfast.tasks t
        where t.run_id = h.run_id and t.key = h.key limit 1
    ) as f
    where t.ctid = f.ctid;

    select array_agg(u.place) filter (where not t.held),
        array_agg(u.place) filter (where t.held and e.idx is not null),
        array_agg(u.place) filter (where t.held and t.cancelled)
    into lost, news, cancelled
    from unnest(p_run_ids, p_keys, p_leases, p_known) with ordinality
        as u (run_id, key, lease_no, known, place)
    cross join lateral (
        select coalesce(bool_or(t.worker = p_worker and t.lease_no = u.lease_no), false) as held,
            bool_or(t.cancelled) as cancelled
        from holdfast.tasks t where t.run_id = u.run_id and t.key = u.key
    ) as t
    left join lateral (
        select e.idx from holdfast.events e
        where u.key = '' and e.run_id = u.run_id and e.idx = u.known limit 1
    ) as e on true;
end $$;

-- Return the leases that the database has for a worker and that the worker does not name (run,
-- key): it does not know of them. The answer to a claim was lost, or a failover lost the record of
-- a commit. Only those that were given or renewed more than p_seconds ago: the answer to a later
-- claim may still be on its way. p_lease_seconds is how long the worker's leases last.
-- Locks nothing. Called by workers after the database was away.
create or replace function holdfast.stray_leases(
    p_worker text, p_run_ids uuid[], p_keys text[], p_lease_seconds float8, p_seconds float8
) returns table (run_id uuid, key text, lease_no int)
language plpgsql stable
as $$
begin
    return query
    select t.run_id, t.key, t.lease_no
    from holdfast.tasks t
    where t.worker = p_worker
        and t.visible_at < holdfast.now() + (p_lease_seconds - p_seconds) * interval '1 second'
        and not exists (
            select from unnest(p_run_ids, p_keys) as u (run_id, key)
            where u.run_id = t.run_id and u.key = t.key);
end $$;

-- Return true if a worker was heard at about this time: at most so many seconds ago, or ahead,
-- because the database's clock may have been set back. Called by heartbeat, _duties, claim_tasks,
-- _is_heard_without_gap, _can_tell_gone, _silent_workers, ensure_schedules, sample_load, unserved,
-- declare_alerts, _seen_of, _workers_of_build, _needed_for and _is_left.
create or replace function holdfast._is_heard(
    p_heard_at timestamptz, p_now timestamptz, p_seconds float8
) returns boolean
language sql stable parallel safe
return p_heard_at between p_now - p_seconds * interval '1 second'
    and p_now + p_seconds * interval '1 second';

-- Return true if a worker is heard now, and was heard for so many seconds without a gap. Only such
-- a worker can know if another worker is gone or the database was away. Locks nothing. Called by
-- _spared, _can_tell_gone, _silent_workers and _is_left.
create or replace function holdfast._is_heard_without_gap(
    p_worker text, p_now timestamptz, p_seconds float8
) returns boolean
language sql stable
as $$
    select exists (
        select from holdfast.workers w
        where w.worker_id = p_worker and holdfast._is_heard(w.heard_at, p_now, p_seconds / 2)
            and w.heard_since <= p_now - p_seconds * interval '1 second')
$$;

-- Return the workers whose expired leases are left to them (see claim_tasks), for a worker that
-- claims with leases of so many seconds. Locks nothing. Called by claim_tasks.
create or replace function holdfast._spared(
    p_worker text, p_now timestamptz, p_lease_seconds float8
) returns text[]
language sql stable
as $$
    select array(
        select w.worker_id from holdfast.workers w
        where not holdfast._is_heard_without_gap(p_worker, p_now, p_lease_seconds)
            and not holdfast._is_heard_without_gap(w.worker_id, p_now, p_lease_seconds / 4))
$$;

-- Return true if silence proves that code of an app is gone: one of its workers was heard for 90
-- seconds without a gap. After an absence of the database none was, and code that was not heard may
-- be back. A worker that starts and a sweep cannot wait for so long: they believe the silence
-- unless a worker had a gap since, or the server was started, or took over from another that wrote
-- until then, ten minutes ago or less. A worker without handlers may be one of any app.
-- Locks nothing. Called by declare_alerts, declare_subscriptions and ensure_schedules.
create or replace function holdfast._can_tell_gone(
    p_app text, p_now timestamptz, p_starting boolean
) returns boolean
language sql stable
as $$
    select coalesce(bool_or(holdfast._is_heard_without_gap(w.worker_id, p_now, 90))
        or (p_starting
            or bool_or(w.ends_at is not null and holdfast._is_heard(w.heard_at, p_now, 45)))
        and not bool_or(w.heard_since > greatest(w.started_at, p_now - interval '90 seconds'))
        and greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp())
            not between p_now - interval '10 minutes' and p_now,
        true)
    from holdfast.workers w
    where w.handlers = '{}' or exists (
        select from unnest(w.handlers) as h (handler)
        where starts_with(h.handler, p_app || '/'))
$$;

-- Return the silent workers, if the observer can judge. If another worker has missed half of its
-- time, none is returned yet: workers that fell silent together are judged together. Losses are
-- `innocent` if a run cannot have caused them: workers of several hosts fell silent at once, or the
-- database was away after the worker was heard last. A sweep that is silent and should have ended
-- was killed: to know that, an observer needs no time of its own. Locks nothing. Called by
-- reap_workers.
create or replace function holdfast._silent_workers(
    p_observer text, p_now timestamptz, p_silent_seconds float8
) returns table (worker_id text, innocent boolean)
language sql stable
as $$
    with quiet as (
        select w.worker_id, w.hostname, w.heard_at,
            not holdfast._is_heard(w.heard_at, p_now, p_silent_seconds) as is_silent
        from holdfast.workers w
        where not holdfast._is_heard(w.heard_at, p_now, p_silent_seconds / 2)
    )
    select q.worker_id, (select count(distinct h.hostname) > 1 from quiet h)
        or q.heard_at < o.heard_since and o.started_at < o.heard_since
        or q.heard_at < pg_postmaster_start_time() and pg_postmaster_start_time() <= p_now
    from quiet q
    join holdfast.workers o on o.worker_id = p_observer
    where holdfast._is_heard_without_gap(p_observer, p_now, p_silent_seconds)
        and (select bool_and(a.is_silent) from quiet a)
    union
    select w.worker_id, false from holdfast.workers w
    where w.ends_at < p_now and p_observer is not null
        and not holdfast._is_heard(w.heard_at, p_now, p_silent_seconds)
$$;

-- Delete workers that p_observer has not heard for so many seconds, and the named workers, and let
-- their leases expire now: the next claim takes them over. Innocent losses do not count as
-- attempts. Those at activities and steps are only marked here, and taken off when the lease is
-- taken over: until then the holder may still return, or end its attempt, and that counts. If
-- another transaction has locked a task, its lease expires by itself.
-- Locks: worker rows by id; task rows, skipping locked ones. Called by maintenance, in any number
-- of processes at once, and by callers that know that a worker is gone.
create or replace function holdfast.reap_workers(
    p_silent_seconds float8, p_workers text[], p_observer text default null,
    out gone text[], out queues text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_innocent text[];
    v_tasks record;
begin
    perform from holdfast.workers w
    where w.worker_id = any (p_workers)
        or w.worker_id in (select s.worker_id from holdfast._silent_workers(
            p_observer, v_now, p_silent_seconds) as s)
    order by w.worker_id for update;
    -- Asked again: a worker that was heard while its row was waited for is not silent.
    select array_agg(s.worker_id), array_agg(s.worker_id) filter (where s.innocent)
    into gone, v_innocent
    from holdfast._silent_workers(p_observer, v_now, p_silent_seconds) as s
    where s.worker_id <> all (p_workers);
    gone := array(
        select distinct w.worker_id from unnest(gone || p_workers) as w (worker_id) order by 1);
    if cardinality(gone) = 0 then
        return;
    end if;
    delete from holdfast.workers w where w.worker_id = any (gone);

    select array_agg(l.run_id) as run_ids, array_agg(l.key) as keys into v_tasks
    from (
        select t.run_id, t.key from holdfast.tasks t
        where t.worker = any (gone) for update skip locked
    ) as l;
    with freed as (
        update holdfast.tasks t
        set visible_at = v_now,
            attempts = case when t.key = '' and t.worker = any (v_innocent)
                then greatest(t.attempts - 1, 0) else t.attempts end,
            innocent = t.key <> '' and t.worker = any (coalesce(v_innocent, '{}'))
        from unnest(v_tasks.run_ids, v_tasks.keys) as u (run_id, key)
        cross join lateral (
            select t.ctid from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key limit 1
        ) as f
        where t.ctid = f.ctid
        returning t.queue
    )
    select array_agg(distinct f.queue) into queues from freed f;
end $$;
