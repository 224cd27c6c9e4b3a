-- Lost workers: the former holders of expired leases can write no more. A task that loses one
-- worker after another is kept apart from other tasks, and at last its run fails.

-- Choose among the tasks that a claim has locked: return those that it may lease, and the runs that
-- are `poisoned`. Skip activities with an expired lease if another transaction has locked their
-- turn row: it may have inserted events that WorkerLost would have to wait for, while it waits for
-- the activity's row. An activity that was asked to stop is deleted, and its run told if it waits.
-- Locks: turn rows of activities and steps, skipping locked ones; as _tell_stopped. Called by
-- claim_tasks and requeue_stalled_tasks.
create or replace function holdfast._lock_lost(
    inout p_run_ids uuid[], inout p_keys text[], p_max_attempts int, out poisoned uuid[]
)
language plpgsql
as $$
declare
    v_forgotten holdfast.tasks[];
begin
    with taken as materialized (
        select u.run_id, u.key, u.place, t.ctid as tid, t.cancelled,
            u.key <> '' and t.worker is not null as is_lost,
            case t.kind
                when 'step' then t.worker is not null and t.losses >= 3 and not t.innocent
                else u.key = '' and t.worker is not null and t.attempts >= p_max_attempts
                    and not holdfast._made_progress(t.run_id, t.claimed_idx) end as is_poison
        from unnest(p_run_ids, p_keys) with ordinality as u (run_id, key, place)
        cross join lateral (
            select t.ctid, t.run_id, t.kind, t.worker, t.cancelled, t.attempts, t.claimed_idx,
                t.losses, t.innocent
            from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key limit 1
        ) as t
    ), turns as materialized (
        select l.run_id
        from (select distinct t.run_id from taken t where t.is_lost) as l
        cross join lateral (
            select from holdfast.tasks t
            where t.run_id = l.run_id and t.key = '' for update skip locked
        ) as t
    ), forgotten as (
        delete from holdfast.tasks t
        using taken l join turns using (run_id)
        where t.ctid = l.tid and l.is_lost and l.cancelled
        returning t
    )
    select array_agg(t.run_id order by t.place) filter (where not t.is_poison),
        array_agg(t.key order by t.place) filter (where not t.is_poison),
        array_agg(t.run_id order by t.place) filter (where t.is_poison),
        (select array_agg(f.t) from forgotten f)
    into p_run_ids, p_keys, poisoned, v_forgotten
    from taken t left join turns u using (run_id)
    where not t.is_lost or (u.run_id is not null and not t.cancelled);
    -- Without the notices: the runs are due now, and workers that hold them look with heartbeats.
    perform holdfast._tell_stopped(holdfast.now(), v_forgotten);
end $$;

-- Append WorkerLost with the number of each expired lease, so that its former holder can write no
-- more. If the run made progress under that lease, the attempts of a turn count from 0 again;
-- signals are not progress. What an innocent worker lost does not count.
-- Locks: expects the task rows locked; events, run by run. Called by claim_tasks, fail_poisoned,
-- _fail_lost_steps and requeue_stalled_tasks.
create or replace function holdfast._record_lost_workers(
    p_now timestamptz, p_run_ids uuid[], p_keys text[]
) returns void
language plpgsql
as $$
declare
    v_task record;
begin
    for v_task in
        select t.* from unnest(p_run_ids, p_keys) as u (run_id, key)
        cross join lateral (
            select * from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key limit 1
        ) as t
        where t.worker is not null
        order by t.run_id, t.key
    loop
        perform holdfast._append(p_now, v_task.run_id, 'WorkerLost', json_build_object(
            'task_key', v_task.key, 'lease_no', v_task.lease_no, 'worker', v_task.worker));
        -- An activity's attempts count for its policy, which its next worker applies. Progress is
        -- looked for after WorkerLost is written: a late checkpoint may have come before it.
        if v_task.innocent then
            update holdfast.tasks t set attempts = greatest(t.attempts - 1, 0), innocent = false
            where t.run_id = v_task.run_id and t.key = v_task.key;
        elsif v_task.key = '' and holdfast._made_progress(v_task.run_id, v_task.claimed_idx) then
            update holdfast.tasks t set attempts = 0
            where t.run_id = v_task.run_id and t.key = v_task.key;
        elsif v_task.kind = 'step' then
            update holdfast.tasks t set losses = t.losses + 1
            where t.run_id = v_task.run_id and t.key = v_task.key;
        end if;
    end loop;
end $$;

-- Return true if a worker has committed to a run's log from an index on. Locks nothing. Called by
-- _lock_lost, _holds_suspect, _record_lost_workers and run_as_flow.
create or replace function holdfast._made_progress(p_run_id uuid, p_since int) returns boolean
language plpgsql stable
as $$
begin
    return exists (
        select from holdfast.events e
        where e.run_id = p_run_id and e.idx >= p_since and e.commit_token is not null);
end $$;

-- Return true if a task has lost at least so many workers, which is at most the number of its
-- attempts. Attempts of an activity may also have failed: its log says which. Called by _lock_due,
-- _expired and _holds_suspect.
create or replace function holdfast._lost_before(p_run_id uuid, p_key text, p_losses int)
returns boolean
language plpgsql stable
as $$
begin
    return p_key = '' or p_losses <= (
        select count(*) from holdfast.events e
        where e.run_id = p_run_id and e.event_type = 'WorkerLost'
            and e.details ->> 'task_key' = p_key);
end $$;

-- Return true if a worker holds a task that had lost three workers before it came to this one, and
-- that has made no progress since: an activity or a step makes none before it ends. What a claim
-- does not ask for, as a pause or the worker's own room leaves it out, is held all the same.
-- Locks nothing. Called by _lock_due and _expired.
create or replace function holdfast._holds_suspect(p_worker text, p_now timestamptz)
returns boolean
language plpgsql stable
as $$
begin
    return exists (
        select from holdfast.tasks t
        where t.worker is not null and t.worker = p_worker and t.visible_at > p_now
            and t.attempts > 3 and holdfast._lost_before(t.run_id, t.key, 3)
            and not (t.key = '' and holdfast._made_progress(t.run_id, t.claimed_idx)));
end $$;

-- Fail runs with expired leases that lost p_max_attempts workers without progress: append
-- WorkerLost, then WorkflowFailed. A run that made progress after all is free again. If another
-- transaction has locked the run's turn row or its parent's, the run is left for the next claim.
-- Returns (topic, payload) notices.
-- Locks: turn rows as _lock_families, then events and runs, by run_id. Called by workers, for the
-- runs that a claim found poisoned, and requeue_stalled_tasks.
create or replace function holdfast.fail_poisoned(p_run_ids uuid[], p_max_attempts int)
returns text[]
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_locked uuid[] := holdfast._lock_families(p_run_ids);
    v_run_ids uuid[];
    v_poisoned uuid[];
    v_errors json[];
    v_notices text[];
begin
    v_notices := holdfast._fail_lost_steps(v_now, v_locked);
    select array_agg(t.run_id) into v_run_ids
    from unnest(v_locked) as u (run_id)
    cross join lateral (
        select * from holdfast.tasks t where t.run_id = u.run_id and t.key = '' limit 1
    ) as t
    where t.worker is not null and t.visible_at <= v_now and t.attempts >= p_max_attempts;
    if v_run_ids is null then
        return v_notices;
    end if;
    perform holdfast._record_lost_workers(
        v_now, v_run_ids, array_fill(''::text, array[cardinality(v_run_ids)]));

    with spared as (
        update holdfast.tasks t
        set worker = null, sticky_worker = null, visible_at = v_now
        where t.run_id = any (v_run_ids) and t.key = '' and t.attempts = 0
        returning t.queue
    )
    select v_notices || array_agg(distinct array['work', s.queue]) into v_notices from spared s;
    select array_agg(t.run_id order by t.run_id), array_agg(json_build_object(
            'kind', 'holdfast.PoisonedRun', 'message',
            format('the run lost %s workers without making progress', t.attempts))
        order by t.run_id)
    into v_poisoned, v_errors
    from holdfast.tasks t
    where t.run_id = any (v_run_ids) and t.key = '' and t.worker is not null;
    if v_poisoned is not null then
        select v_notices || e.notices into v_notices
        from holdfast._end_each(
            v_now, v_poisoned, 'failed', 'WorkflowFailed', null, v_errors) as e;
    end if;
    return v_notices;
end $$;
