-- The end of one step that one step follows, or the run's end: what an idle worker reports.

-- Record an output as _end_linear_steps does, for a call with a single end: its statements are
-- short because they need no arrays. Nothing is written, and no rows are returned, where that does
-- nothing, and if the attempt is no longer open.
-- Locks: the turn row, the task; then runs, states and events, which nobody else changes while the
-- turn is locked. Called by end_step_tasks.
create or replace function holdfast._end_linear_step(
    p_now timestamptz, p_worker text, p_run_id uuid, p_key text, p_lease_no int, p_output json,
    p_taker holdfast._taker, p_tell text
) returns table (
    now bigint, outcomes text[], notices text[],
    run_id uuid, key text, queue text, handler text, attempts int, lease_no int, input text,
    run_key text, headers json
)
language plpgsql
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_end record;
    v_output json := coalesce(p_output, 'null');
    v_is_last boolean;
    v_is_handed boolean := false;
begin
    select k.ctid as tid, k.attempts, k.worker, k.started_at, t.handler, t.priority, t.paused,
        n.step_slug as next_slug, n.wants_run, coalesce(n.queue, t.queue) as next_queue
    into v_end
    from holdfast.tasks t
    cross join lateral (
        select s.step_slug, s.queue, s.wants_run
        from (
            select min(d.step_slug) as step_slug, count(*) as dependents from holdfast.deps d
            where d.handler = t.handler and d.dep_slug = p_key
        ) as d
        cross join lateral (
            select * from holdfast.steps s
            where s.handler = t.handler and s.step_slug = d.step_slug limit 1
        ) as s
        where d.dependents = 1 and s.deps_count = 1 and s.step_type in ('single', 'end')
            and s.runs is null and coalesce(s.opt_start_delay, 0) = 0
            and num_nonnulls(s.required_input_pattern, s.forbidden_input_pattern) = 0
            and s.trigger_rule = 'none_failed'
    ) as n
    join holdfast.tasks k on k.run_id = p_run_id and k.key = p_key and k.kind = 'step'
        and holdfast._is_open_attempt(p_worker, p_lease_no, k.worker, k.lease_no, k.claimed_idx)
    where t.run_id = p_run_id and t.key = '' and t.parent_run_id is null
        and not exists (
            select from holdfast.steps s where s.handler = t.handler and s.runs is not null)
        and not exists (  -- a fork was given its output
            select from holdfast.step_states s
            where n.step_slug <> '' and s.run_id = p_run_id and s.step_slug = n.step_slug)
    for update of t, k;
    if not found then
        return;
    end if;

    v_is_last := v_end.next_slug = '';
    if v_is_last then
        notices := holdfast._end_last_step(
            p_now, p_run_id, '{"' || p_key || '":' || v_output || '}');
    else
        delete from holdfast.tasks t where t.ctid = v_end.tid;
        if p_taker.room > 0 and not v_end.paused and v_end.next_queue = any (p_taker.queues)
            and v_end.handler = any (p_taker.handlers)
        then
            v_is_handed := holdfast._room(p_taker) > 0;
        end if;
        insert into holdfast.tasks (run_id, key, kind, queue, handler, priority, visible_at,
            attempts, lease_no, claimed_idx, worker, started_at, paused)
        select p_run_id, v_end.next_slug, 'step', v_end.next_queue, v_end.handler, v_end.priority,
            case when v_is_handed then p_taker.until else p_now end, b.begun, b.begun, b.begun,
            case when v_is_handed then p_taker.worker end, case when v_is_handed then p_now end,
            v_end.paused
        from (select v_is_handed::int as begun) as b;
        notices := case when not v_is_handed then array[array['starts', v_end.next_queue]] end;
    end if;
    insert into holdfast.step_states (run_id, step_slug, status, initial_tasks, remaining_tasks,
        output, attempts, worker, started_at, ended_at)
    values (p_run_id, p_key, 'completed', 1, 0, v_output, v_end.attempts, v_end.worker,
        v_end.started_at, p_now)
    on conflict (run_id, step_slug) do update
    set status = 'completed', initial_tasks = 1, remaining_tasks = 0, output = excluded.output,
        attempts = excluded.attempts, worker = excluded.worker, started_at = excluded.started_at,
        ended_at = p_now;
    insert into holdfast.events (run_id, idx, event_type, key, at)
    select p_run_id, l.idx + n.place, n.event_type, n.key, p_now
    from (
        select e.idx from holdfast.events e where e.run_id = p_run_id order by e.idx desc limit 1
    ) as l
    cross join (values (1, 'FlowStepCompleted', p_key), (2, 'WorkflowCompleted', null))
        as n (place, event_type, key)
    where n.place = 1 or v_is_last;

    now := holdfast._micros(p_now);
    outcomes := '{recorded}';
    notices := holdfast._tell(p_tell, notices);
    return next;
    if v_is_handed then
        return query
        select null::bigint, null::text[], null::text[], p_run_id, v_end.next_slug,
            v_end.next_queue, v_end.handler, 1, 1,
            '{' || case when v_end.wants_run then '"run":' || r.input || ',' else '' end
                || '"' || p_key || '":' || v_output || '}',
            holdfast._known_key(p_run_id, r.key), r.headers
        from holdfast.runs r where r.run_id = p_run_id;
    end if;
end $$;

-- End a run whose last step has ended. Returns the notices of _end_runs. Locks: expects the turn
-- row locked; as _end_runs and _count_ended. Called by _end_linear_step.
create or replace function holdfast._end_last_step(
    p_now timestamptz, p_run_id uuid, p_output text
) returns text[]
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_run_ids uuid[] := array[p_run_id];
    v_notices text[];
begin
    select e.notices into v_notices
    from holdfast._end_runs(p_now, v_run_ids, '{completed}', array[p_output::json]) as e;
    perform holdfast._count_ended(p_now, v_run_ids, 'completed');
    perform holdfast._keep_ends(p_now, v_run_ids);
    return v_notices;
end $$;
