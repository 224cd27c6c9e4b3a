-- What becomes of attempts at steps that failed.

-- Lock all tasks of runs in which an attempt failed that no other follows, unless its map tolerates
-- it: they, or those of its step, will be deleted. Comes before the states of maps, as with all
-- others. Called by end_step_tasks.
create or replace function holdfast._lock_doomed(
    p_run_ids uuid[], p_keys text[], p_errors json[], p_retryable boolean[]
) returns void
language plpgsql
as $$
begin
    perform holdfast._lock_step_tasks(array(
        select distinct d.run_id
        from (
            select u.run_id, o.step_slug, count(*) as failures, min(o.spare) as spare
            from unnest(p_run_ids, p_keys, p_errors, p_retryable)
                as u (run_id, key, error, retryable)
            cross join lateral (
                select t.handler, t.attempts from holdfast.tasks t
                where t.run_id = u.run_id and t.key = u.key limit 1
            ) as t
            cross join lateral (
                select split_part(u.key, ':', 1) as step_slug, o.max_attempts, case
                    when o.is_tolerant and strpos(u.key, ':') > 0
                    then holdfast._spare(u.run_id, t.handler, split_part(u.key, ':', 1))
                    else 0 end as spare
                from holdfast._step_options(t.handler, split_part(u.key, ':', 1)) as o
            ) as o
            where u.error is not null
                and not (coalesce(u.retryable, true) and t.attempts < o.max_attempts)
            group by u.run_id, o.step_slug
        ) as d
        where d.failures > d.spare), null);
end $$;

-- Return how many more elements of a map may fail. Expects the turn row locked. Called by
-- _lock_doomed and _fail_attempts.
create or replace function holdfast._spare(p_run_id uuid, p_handler text, p_step text) returns int
language plpgsql stable
as $$
begin
    return coalesce(least(s.tolerated_count,
            (s.tolerated_percent::bigint * t.initial_tasks / 100)::int), 0)
        - coalesce(t.failed_tasks, 0)
    from holdfast.steps s
    cross join holdfast.step_states t
    where s.handler = p_handler and s.step_slug = p_step
        and t.run_id = p_run_id and t.step_slug = p_step;
end $$;

-- Return the options of a step, or those of its flow; `is_soft` if its failure does not end the
-- run, `is_tolerant` if elements of it may fail. Called by all that fail attempts or lease steps
-- to SQL workers.
create or replace function holdfast._step_options(
    p_handler text, p_step text, out max_attempts int, out base_delay int, out timeout int,
    out when_exhausted text, out is_soft boolean, out is_tolerant boolean,
    out jitter int
)
language plpgsql stable
as $$
begin
    select coalesce(s.opt_max_attempts, f.opt_max_attempts),
        coalesce(s.opt_base_delay, f.opt_base_delay), coalesce(s.opt_timeout, f.opt_timeout),
        s.when_exhausted, holdfast._fails_softly(p_handler),
        num_nonnulls(s.tolerated_count, s.tolerated_percent) > 0, s.opt_jitter
    into max_attempts, base_delay, timeout, when_exhausted, is_soft, is_tolerant, jitter
    from holdfast.steps s cross join holdfast.flows f
    where s.handler = p_handler and s.step_slug = p_step and f.handler = p_handler;
end $$;

-- Return the seconds between an attempt that failed and the next, shorter or longer by up to
-- p_jitter percent. Called by _fail_attempts and _start_child_steps.
create or replace function holdfast._step_pause(p_base_delay int, p_failed int, p_jitter int)
returns float8
language sql volatile
return floor(p_base_delay * power(2::float8, least(p_failed, 60)))
    * (1 + coalesce(p_jitter, 0) / 100.0::float8 * (2 * random() - 1));

-- Return what the error of a map adds that had more failures than it tolerates: how many these
-- were. p_spare is what _spare returns. Called by _fail_attempts.
create or replace function holdfast._tolerance_text(p_run_id uuid, p_step text, p_spare int)
returns text
language plpgsql stable
as $$
begin
    return format('; %s of %s elements failed, %s %s tolerated', n.tolerated + 1, n.initial_tasks,
        n.tolerated, case n.tolerated when 1 then 'is' else 'are' end)
    from (
        select t.initial_tasks, coalesce(t.failed_tasks, 0) + p_spare as tolerated
        from holdfast.step_states t where t.run_id = p_run_id and t.step_slug = p_step
    ) as n;
end $$;

-- Decide what becomes of attempts that failed: due again after a pause, or the step is skipped, or
-- its run fails. An element of a map that tolerates it has no result; the failure that ends the map
-- is counted as well, but none after it. Returns the places of those that were open, from 1, those
-- of them that are `retried`, and what _advance_flows continues with.
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
    v_run_ids uuid[];  -- of elements that may fail
    v_keys text[];
    v_counted record;
begin
    ends := '{}';
    entries := '{}';
    failures := '{}';
    if p_errors is null then
        return;
    end if;
    with held as materialized (
        select u.place::int as place, u.error, t.*, o.when_exhausted, o.is_soft,
            case when o.is_tolerant and t.task_index is not null
                then holdfast._spare(t.run_id, t.handler, t.step_slug) else 0 end as spare,
            o.is_tolerant and t.task_index is not null as is_tolerant,
            coalesce(u.retryable, true) and t.attempts < o.max_attempts as is_retried,
            holdfast._after(p_now, holdfast._step_pause(o.base_delay, t.attempts, o.jitter))
                as due_at,
            row_number() over (partition by t.run_id, t.key order by u.place) as mention
        from unnest(p_run_ids, p_keys, p_leases, p_errors, p_retryable) with ordinality
            as u (run_id, key, lease_no, error, retryable, place)
        cross join lateral (
            select t.ctid as tid, t.run_id, t.key, split_part(t.key, ':', 1) as step_slug,
                nullif(split_part(t.key, ':', 2), '')::int as task_index, t.handler, t.queue,
                t.attempts, t.worker, t.started_at
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
        set worker = null, innocent = false, stuck = null,
            heartbeat = json_build_object('error', h.error),
            visible_at = case t.kind when 'child' then t.visible_at else h.due_at end,
            claimed_idx = (t.kind = 'child')::int, attempts = t.attempts + (t.kind = 'child')::int
        from held h
        where t.ctid = h.tid and h.mention = 1 and h.is_retried
        returning t.run_id, t.handler, t.key, t.queue, t.kind, t.visible_at
    ), final as materialized (
        select f.*, bool_or(f.is_over) over (partition by f.run_id, f.step_slug) as ends_step
        from (
            select h.*, h.spare < row_number() over (
                partition by h.run_id, h.step_slug order by h.place) as is_over
            from held h where h.mention = 1 and not h.is_retried
        ) as f
    ), tolerated as materialized (
        select f.*, json_build_object('kind', 'holdfast.errors.StepFailed', 'step', f.step_slug,
            'task_index', f.task_index, 'attempts', f.attempts, 'worker', f.worker,
            'message', format('step %s:%s failed: %s', f.step_slug, f.task_index,
                holdfast._error_line(f.error)), 'cause', f.error) as failure
        from final f where not f.is_over
    ), counted as (
        update holdfast.step_states s
        set failed_tasks = coalesce(s.failed_tasks, 0) + m.tolerated + 1,
            remaining_tasks = s.remaining_tasks - m.tolerated
        from (
            select f.run_id, f.step_slug, count(*) filter (where not f.is_over)::int as tolerated
            from final f where f.ends_step and f.is_tolerant group by f.run_id, f.step_slug
        ) as m
        where s.run_id = m.run_id and s.step_slug = m.step_slug
    ), done as (
        delete from holdfast.tasks t where t.ctid = any (array(select f.tid from tolerated f))
    ), elements as (
        insert into holdfast.step_tasks (run_id, step_slug, task_index, output, error, attempts,
            worker, started_at, completed_at)
        select f.run_id, f.step_slug, f.task_index, 'null', f.failure, f.attempts, f.worker,
            f.started_at, p_now
        from tolerated f
    ), over as materialized (
        select h.*, row_number() over (partition by h.run_id order by
            h.when_exhausted <> 'fail', h.place) as rank_in_run,
            row_number() over (partition by h.run_id, h.step_slug order by h.place) as rank_in_step,
            bool_or(h.when_exhausted = 'fail' and not h.is_soft) over (partition by h.run_id)
                as is_fatal,
            json_build_object('kind', 'holdfast.errors.StepFailed', 'step', h.step_slug,
                'task_index', h.task_index, 'attempts', h.attempts, 'worker', h.worker,
                'message', format('step %s failed: %s', h.step_slug || coalesce(
                    ':' || h.task_index, ''), holdfast._error_line(h.error)) || case
                    when h.is_tolerant
                    then holdfast._tolerance_text(h.run_id, h.step_slug, h.spare) else '' end,
                'cause', h.error) as failure
        from final h where h.is_over
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
        (select array_agg((o.run_id, 'FlowStepFailed', o.step_slug,
            json_build_object('error', o.failure))::holdfast._flow_entry order by o.run_id)
        from over o where o.is_fatal and o.rank_in_run = 1),
        (select array_agg((o.run_id, o.handler, o.step_slug,
            case o.when_exhausted when 'fail' then 'failed' when 'skip-cascade' then 'cascaded'
                else 'skipped' end)::holdfast._step_end order by o.run_id, o.step_slug)
        from over o where not o.is_fatal and o.rank_in_step = 1),
        (select array_agg(o.failure order by o.run_id, o.step_slug)
        from over o where not o.is_fatal and o.rank_in_step = 1),
        (select array_agg(f.run_id order by f.place) from tolerated f where not f.ends_step),
        (select array_agg(f.key order by f.place) from tolerated f where not f.ends_step)
    into places, retried, notices, children, entries, v_wrong, v_unmet, v_errors, v_run_ids, v_keys;

    if v_run_ids is not null then
        v_counted := holdfast._count_down(p_now, v_run_ids, v_keys, true, true);
        ends := v_counted.ends;
        entries := entries || array(
            select (e.run_id, 'FlowStepCompleted', e.step_slug, null)::holdfast._flow_entry
            from unnest(ends) as e);
        notices := notices || v_counted.notices;
        children := children || v_counted.children;
    end if;

    if v_wrong is not null then
        select f.entries, f.failures into entries, failures
        from holdfast._fail_steps(p_now, v_wrong, entries) as f;
    end if;
    if v_unmet is not null then
        v_skipped := holdfast._skip_steps(p_now, v_unmet, 'handler_failed', v_errors);
        ends := ends || v_skipped.ends;
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
            array_fill(false, array[cardinality(v_lost.keys)]), p_now => p_now) as e
        limit 1;
    end if;
    return v_notices;
end $$;
