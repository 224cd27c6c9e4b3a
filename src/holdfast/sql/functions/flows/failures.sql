-- What becomes of attempts at steps that failed.

-- Lock all tasks of runs in which an attempt failed that no other follows: they, or those of its
-- step, will be deleted. Comes before the states of maps, as with all others. Called by
-- end_step_tasks.
create or replace function holdfast._lock_doomed(
    p_run_ids uuid[], p_keys text[], p_errors json[], p_retryable boolean[]
) returns void
language plpgsql
as $$
begin
    perform holdfast._lock_step_tasks(array(
        select distinct u.run_id
        from unnest(p_run_ids, p_keys, p_errors, p_retryable) as u (run_id, key, error, retryable)
        cross join lateral (
            select t.handler, t.attempts from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key limit 1
        ) as t
        where u.error is not null and not (coalesce(u.retryable, true)
            and t.attempts < (
                select o.max_attempts
                from holdfast._step_options(t.handler, split_part(u.key, ':', 1)) as o))), null);
end $$;

-- Return the options of a step, or those of its flow. Called by all that fail attempts or lease
-- steps to SQL workers.
create or replace function holdfast._step_options(
    p_handler text, p_step text, out max_attempts int, out base_delay int, out timeout int,
    out when_exhausted text
)
language plpgsql stable
as $$
begin
    select coalesce(s.opt_max_attempts, f.opt_max_attempts),
        coalesce(s.opt_base_delay, f.opt_base_delay), coalesce(s.opt_timeout, f.opt_timeout),
        s.when_exhausted
    into max_attempts, base_delay, timeout, when_exhausted
    from holdfast.steps s cross join holdfast.flows f
    where s.handler = p_handler and s.step_slug = p_step and f.handler = p_handler;
end $$;

-- Decide what becomes of attempts that failed: due again after a pause, or the step is skipped, or
-- its run fails. Returns the places of those that were open, from 1, those of them that are
-- `retried`, and what _advance_flows continues with.
-- Locks: expects turn rows and tasks locked; states of steps. Called by end_step_tasks.
create or replace function holdfast._fail_attempts(
    p_now timestamptz, p_worker text, p_run_ids uuid[], p_keys text[], p_leases int[],
    p_errors json[], p_retryable boolean[],
    out places int[], out retried int[], out ends holdfast._step_end[],
    out entries holdfast._flow_entry[], out failures holdfast._flow_failure[],
    out notices text[], out children holdfast._flow_step[]
)
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_wrong holdfast._flow_entry[];
    v_unmet holdfast._step_end[];
    v_errors json[];
    v_skipped record;
begin
    ends := '{}';
    entries := '{}';
    failures := '{}';
    if p_errors is null then
        return;
    end if;
    with held as materialized (
        select u.place::int as place, u.error, t.*, o.when_exhausted,
            coalesce(u.retryable, true) and t.attempts < o.max_attempts as is_retried,
            holdfast._after(p_now, floor(o.base_delay * power(2::float8, least(t.attempts, 60))))
                as due_at,
            row_number() over (partition by t.run_id, t.key order by u.place) as mention
        from unnest(p_run_ids, p_keys, p_leases, p_errors, p_retryable) with ordinality
            as u (run_id, key, lease_no, error, retryable, place)
        cross join lateral (
            select t.ctid as tid, t.run_id, t.key, split_part(t.key, ':', 1) as step_slug,
                nullif(split_part(t.key, ':', 2), '')::int as task_index, t.handler, t.queue,
                t.attempts, t.worker
            from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key
                and t.kind = case when p_worker = '' then 'child' else 'step' end
                and holdfast._is_open_attempt(
                    p_worker, u.lease_no, t.worker, t.lease_no, t.claimed_idx)
            limit 1
        ) as t
        cross join lateral holdfast._step_options(t.handler, t.step_slug) as o
        where u.error is not null
    ), freed as (
        update holdfast.tasks t
        set worker = null, innocent = false, heartbeat = json_build_object('error', h.error),
            visible_at = case t.kind when 'child' then t.visible_at else h.due_at end,
            claimed_idx = (t.kind = 'child')::int, attempts = t.attempts + (t.kind = 'child')::int
        from held h
        where t.ctid = h.tid and h.mention = 1 and h.is_retried
        returning t.run_id, t.handler, t.key, t.queue, t.kind, t.visible_at
    ), over as materialized (
        select h.*, row_number() over (partition by h.run_id order by
            h.when_exhausted <> 'fail', h.place) as rank_in_run,
            row_number() over (partition by h.run_id, h.step_slug order by h.place) as rank_in_step,
            bool_or(h.when_exhausted = 'fail') over (partition by h.run_id) as is_fatal
        from held h where h.mention = 1 and not h.is_retried
    )
    select (select array_agg(h.place) from held h where h.mention = 1),
        (select array_agg(h.place) from held h where h.mention = 1 and h.is_retried),
        (select array_agg(distinct array[
                case when f.visible_at <= p_now then 'starts' else 'work' end, f.queue])
        from freed f where f.kind = 'step'),
        (select array_agg((f.run_id, f.handler, f.key)::holdfast._flow_step
            order by f.run_id, f.key) from freed f where f.kind = 'child'),
        (select coalesce(array_agg((r.run_id, 'FlowStepRetryScheduled', r.step_slug, r.details)
            ::holdfast._flow_entry), '{}')
        from (
            select h.run_id, h.step_slug, json_build_object(
                'tasks', count(*), 'task_index', min(h.task_index), 'attempt', max(h.attempts),
                'error', (array_agg(h.error order by h.place))[1],
                'retry_at', holdfast._micros(min(h.due_at))) as details
            from held h where h.mention = 1 and h.is_retried
            group by h.run_id, h.step_slug
        ) as r),
        (select array_agg((o.run_id, 'FlowStepFailed', o.step_slug, json_build_object(
            'error', json_build_object('kind', 'holdfast.errors.StepFailed', 'step', o.step_slug,
                'task_index', o.task_index, 'attempts', o.attempts, 'worker', o.worker,
                'message', format('step %s failed: %s', o.step_slug || coalesce(
                    ':' || o.task_index, ''), holdfast._error_line(o.error)),
                'cause', o.error)))::holdfast._flow_entry order by o.run_id)
        from over o where o.is_fatal and o.rank_in_run = 1),
        (select array_agg((o.run_id, o.handler, o.step_slug,
            case o.when_exhausted when 'skip-cascade' then 'cascaded' else 'skipped' end
            )::holdfast._step_end order by o.run_id, o.step_slug)
        from over o where not o.is_fatal and o.rank_in_step = 1),
        (select array_agg(o.error order by o.run_id, o.step_slug)
        from over o where not o.is_fatal and o.rank_in_step = 1)
    into places, retried, notices, children, entries, v_wrong, v_unmet, v_errors;

    if v_wrong is not null then
        select f.entries, f.failures into entries, failures
        from holdfast._fail_steps(p_now, v_wrong, entries) as f;
    end if;
    if v_unmet is not null then
        v_skipped := holdfast._skip_steps(p_now, v_unmet, 'handler_failed', v_errors);
        ends := v_skipped.ends;
        entries := entries || v_skipped.entries;
        notices := notices || v_skipped.notices;
    end if;
end $$;

-- Fail tasks of steps for good whose lease ran out after three that had run out before. Returns
-- (topic, payload) notices. Locks: expects the turn rows locked; then as end_step_tasks. Called by
-- fail_poisoned.
create or replace function holdfast._fail_lost_steps(p_now timestamptz, p_run_ids uuid[])
returns text[]
language plpgsql
as $$
declare
    v_lost record;
    v_notices text[];
begin
    perform holdfast._lock_step_tasks(p_run_ids, null);
    select array_agg(t.run_id) as run_ids, array_agg(t.key) as keys, array_agg(t.lease_no) as leases
    into v_lost
    from unnest(p_run_ids) as u (run_id)
    cross join lateral (
        select * from holdfast.tasks t where t.run_id = u.run_id and t.key <> '' offset 0
    ) as t
    where t.kind = 'step' and t.worker is not null and t.losses >= 3 and not t.innocent
        and t.visible_at <= p_now;
    if v_lost.run_ids is not null then
        perform holdfast._record_lost_workers(p_now, v_lost.run_ids, v_lost.keys);
        select e.notices into v_notices
        from holdfast.end_step_tasks(null, v_lost.run_ids, v_lost.keys, v_lost.leases, null,
            array_fill('{"kind":"holdfast.errors.WorkerLost","message":"the task lost 4 workers"}'
                ::json, array[cardinality(v_lost.keys)]),
            array_fill(false, array[cardinality(v_lost.keys)])) as e
        limit 1;
    end if;
    return v_notices;
end $$;
