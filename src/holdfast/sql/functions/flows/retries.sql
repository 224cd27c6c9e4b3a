-- Retries of runs of flows: new runs that begin with what others have, as forks do.

-- Start a new run that does what an ended run lacks. Its completed and skipped steps are copied,
-- and the results of elements of maps, so that a map repeats only elements without one. p_from and
-- all steps after it run again whatever they have; an empty text stands for all that failed without
-- failing the run: steps that were skipped after their last attempt, and elements that their map
-- tolerated. What a run of a flow whose shape was replaced since has, is not used. As in a fork,
-- the new run has the input, queue, priority, tags, headers, retention and time to its deadline of
-- the other, but no key and no parent.
--
-- Outcomes: 'started'; 'exists' if the new id is taken; 'missing'; 'running' for a run that has not
-- ended, and for one that completed if p_from is null, or empty and nothing failed; 'unknown_step'.
-- Refuses nulls (22004), runs of workflows, and an input over which a new shape cannot map (22023).
-- Locks: the flow's starts, shared; the other run, so that it is not deleted; the new id. Called by
-- clients.
create or replace function holdfast.retry_flow(
    p_run_id uuid, p_new_run_id uuid, p_from text default null,
    out outcome text, out notices text[]
)
language plpgsql
as $$
declare
    v_origin holdfast.runs;
    v_is_there boolean;
    v_handler text;
begin
    perform holdfast._check_given('the run id', p_run_id is not null);
    perform holdfast._check_given('the new run''s id', p_new_run_id is not null);
    select r.* into v_origin from holdfast.runs r where r.run_id = p_run_id;
    if v_origin.kind <> 'flow' then
        raise invalid_parameter_value using message = format(
            'run %s is not one of a flow: retry it with fork_run', p_run_id);
    end if;
    perform pg_advisory_xact_lock_shared(hashtext('holdfast.flow'), hashtext(v_origin.name));
    v_is_there := holdfast._hold_runs(array[p_run_id]);
    select r.* into v_origin from holdfast.runs r where r.run_id = p_run_id;  -- as it is by now
    v_handler := v_origin.name || '@' || v_origin.version;
    outcome := case
        when holdfast._has_run(p_new_run_id) then 'exists'
        when not v_is_there or not exists (
            select from holdfast.flows f where f.handler = v_handler)
        then 'missing'  -- the flow or the run may have been deleted while this waited
        when v_origin.status = 'running' then 'running'
        when v_origin.status = 'completed' and (p_from is null or p_from = '' and not exists (
            select from holdfast.step_states t
            where t.run_id = p_run_id and holdfast._has_failures(t)))
        then 'running'
        when p_from is not null and not exists (
            select from holdfast.steps s where s.handler = v_handler and s.step_slug = p_from)
        then 'unknown_step' end;
    if outcome is not null then
        return;
    end if;
    select c.outcome, c.notices into outcome, notices
    from holdfast._continue_flow(v_origin, v_handler, p_new_run_id, p_from, null, null) as c;
end $$;

-- Return true if a step or an element of it failed for good. Called by retry_flow and _steps_again.
create or replace function holdfast._has_failures(p_state holdfast.step_states) returns boolean
language sql immutable
as $$
    select p_state.status = 'failed' or p_state.skip_reason is not distinct from 'handler_failed'
        or coalesce(p_state.failed_tasks, 0) > 0
$$;

-- Start a new run that begins with what another has, and continue it. Steps of p_results (an object
-- by step) are completed with these outputs; with p_input nothing else is kept. Returns 'started',
-- or 'exists'. Refuses an input over which the shape cannot map (22023).
-- Locks: expects the flow's starts locked; the new id; then as _advance_flows. Called by retry_flow
-- and fork_flow.
create or replace function holdfast._continue_flow(
    p_origin holdfast.runs, p_handler text, p_run_id uuid, p_from text, p_input json,
    p_results json, out outcome text, out notices text[]
)
language plpgsql
as $$
declare
    v_input json := coalesce(p_input, p_origin.input);
    v_given text[] := array(select distinct k.key from json_object_keys(p_results) as k (key));
    v_is_kept boolean := p_input is null and not exists (  -- older than its shape: started by name
        select from holdfast.replaced_shapes x
        where x.handler = p_handler and x.replaced_at > p_origin.created_at);
    v_again text[];
begin
    perform holdfast._check_shapes(array[holdfast._new_start(p_run_id, split_part(p_handler,
        '@', 1), v_input, split_part(p_handler, '@', 2)::int)]);  -- it may have been replaced
    perform holdfast._seal_shapes(array[p_handler]);
    v_again := holdfast._steps_again(p_origin.run_id, p_handler, v_is_kept, p_from, v_given);
    outcome := holdfast._start_successor(p_origin, p_handler, p_run_id, v_input);
    if outcome = 'started' then
        if v_is_kept then
            perform holdfast._copy_states(
                p_origin.run_id, p_run_id, p_handler, p_from, v_again, v_given);
        end if;
        perform holdfast._give_results(p_run_id, p_handler, p_results, v_given);
        perform holdfast._share_payloads(p_origin.run_id, p_run_id);
        notices := holdfast._resume_flow(p_run_id, p_handler, v_again);
    end if;
end $$;

-- Return the steps that run again in a run that begins with what another has: those that have
-- neither completed nor been skipped, p_from, and all after them and after the steps whose outputs
-- are given; but not those after a step that stays skipped with all that depends on it, unless a
-- given output, or a step with another trigger rule than none_failed, stands between. If nothing is
-- kept, all steps but those given. Locks nothing. Called by _continue_flow.
create or replace function holdfast._steps_again(
    p_run_id uuid, p_handler text, p_is_kept boolean, p_from text, p_given text[]
) returns text[]
language plpgsql stable
as $$
declare
    v_again text[] := holdfast._with_dependents(p_handler, array(
        select s.step_slug
        from holdfast.steps s
        left join lateral (
            select t.status, holdfast._has_failures(t) as has_failures from holdfast.step_states t
            where t.run_id = p_run_id and t.step_slug = s.step_slug limit 1
        ) as t on true
        where s.handler = p_handler and s.step_slug <> '' and s.step_slug <> all (p_given)
            and (not p_is_kept or s.step_slug = p_from or p_from = '' and t.has_failures
                or coalesce(t.status, 'created') not in ('completed', 'skipped'))
        union
        select d.step_slug from holdfast.deps d
        where d.handler = p_handler and d.dep_slug = any (p_given)));
begin
    return array(
        select unnest(v_again)
        except
        select unnest(holdfast._with_dependents(p_handler, array(
            select s.step_slug
            from holdfast.steps s
            cross join lateral (
                select t.status, t.skip_reason from holdfast.step_states t
                where t.run_id = p_run_id and t.step_slug = s.step_slug limit 1
            ) as t
            where s.handler = p_handler and t.status = 'skipped'
                and s.step_slug not in (select unnest(v_again || p_given))
                and 'skip-cascade' = case t.skip_reason
                    when 'condition_unmet' then s.when_unmet
                    when 'handler_failed' then s.when_exhausted end), p_given || array(
                select s.step_slug from holdfast.steps s
                where s.handler = p_handler and s.step_slug <> ''
                    and s.trigger_rule <> 'none_failed')))
        except
        select unnest(p_given || ''::text));
end $$;

-- Return steps with all that depend on them, '' among these, without p_without and what depends on
-- these alone. Locks nothing. Called by _steps_again and _resume_flow.
create or replace function holdfast._with_dependents(
    p_handler text, p_steps text[], p_without text[] default '{}'
) returns text[]
language plpgsql stable
as $$
begin
    return array(
        with recursive later as (
            select u.step_slug from unnest(p_steps) as u (step_slug)
            union
            select d.step_slug
            from later l
            cross join lateral (
                select d.step_slug from holdfast.deps d
                where d.handler = p_handler and d.dep_slug = l.step_slug offset 0
            ) as d
            where d.step_slug not in (select unnest(p_without))
        )
        select l.step_slug from later l);
end $$;

-- Insert the row, the log and the turn row of a run that begins with what another has. Returns
-- 'started', or 'exists'. Locks: the id. Called by _continue_flow.
create or replace function holdfast._start_successor(
    p_origin holdfast.runs, p_handler text, p_run_id uuid, p_input json
) returns text
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    insert into holdfast.runs (run_id, kind, name, version, queue, priority, input, tags, headers,
        retention, deadline_at, created_at)
    values (p_run_id, 'flow', p_origin.name, p_origin.version, p_origin.queue, p_origin.priority,
        p_input, p_origin.tags, holdfast._successor_headers(p_origin.headers, p_origin.run_id),
        p_origin.retention, v_now + (p_origin.deadline_at - p_origin.created_at), greatest(v_now, (
            select f.created_at from holdfast.flows f where f.handler = p_handler)))
    on conflict do nothing;
    if not found then
        return 'exists';
    end if;
    perform holdfast._copy_attributes(array[p_origin.run_id], array[p_run_id]);
    insert into holdfast.events (run_id, idx, event_type, details, at)
    select p_run_id, 0, 'WorkflowStarted', null, v_now
    union all
    select p_run_id, 1, 'WorkflowForked', holdfast._with_key(
        holdfast._known_key(p_origin.run_id, p_origin.key),
        ('{"run_id":"' || p_origin.run_id || '","idx":'
        || max(e.idx) + 1 || ',"seed":"' || p_origin.run_id || '"}')::json), v_now
    from holdfast.events e where e.run_id = p_origin.run_id;
    insert into holdfast.tasks (run_id, kind, queue, handler, priority, visible_at, started_at)
    values (p_run_id, 'flow', p_origin.queue, p_handler, p_origin.priority, 'infinity', v_now);
    return 'started';
end $$;

-- Copy what a run has to one that begins with it: the states of steps that do not run again, and
-- results of elements, also of maps that run again, where those that failed run again too, unless
-- p_from is that map or what it maps over runs again or is given. Of p_given nothing is copied.
-- Locks nothing that others wait for. Called by _continue_flow.
create or replace function holdfast._copy_states(
    p_run_id uuid, p_new_run_id uuid, p_handler text, p_from text, p_again text[], p_given text[]
) returns void
language plpgsql
as $$
begin
    insert into holdfast.step_states  -- what is still skipped, is because of a skip
    select (jsonb_populate_record(t, jsonb_build_object('run_id', p_new_run_id) || case
        when t.skip_reason = 'dependency_failed'
        then '{"skip_reason": "dependency_skipped", "error": null}' else '{}' end::jsonb)).*
    from holdfast.step_states t
    where t.run_id = p_run_id and t.step_slug <> ''
        and t.step_slug not in (select unnest(p_again || p_given));
    insert into holdfast.step_tasks (run_id, step_slug, task_index, output, error, attempts, worker,
        started_at, completed_at)
    select p_new_run_id, x.step_slug, x.task_index, x.output, x.error, x.attempts, x.worker,
        x.started_at, x.completed_at
    from holdfast.step_tasks x
    where x.run_id = p_run_id and (
            x.step_slug is distinct from p_from or x.step_slug <> all (p_again))
        and x.step_slug <> all (p_given)
        and (x.error is null or x.step_slug <> all (p_again)) and not exists (
            select from holdfast.deps d
            where d.handler = p_handler and d.step_slug = x.step_slug
                and d.dep_slug = any (p_again || p_given));
end $$;

-- Begin a run that has states already: count for each step that has not ended which of its
-- dependencies have, and advance from those that are ready. Returns (topic, payload) notices.
-- Locks: expects the run to be new; then as _advance_flows. Called by _continue_flow.
create or replace function holdfast._resume_flow(
    p_run_id uuid, p_handler text, p_again text[]
) returns text[]
language plpgsql
as $$
declare
    v_open text[] := holdfast._with_dependents(p_handler, p_again) || case
        when cardinality(p_again) = 0 then array[''] else '{}' end;
    v_ready holdfast._ready_step[];
begin
    with counted as materialized (
        select s.step_slug, s.step_index, s.step_type, s.deps_count, c.done,
            s.required_input_pattern is not null or s.forbidden_input_pattern is not null
                or s.trigger_rule = 'one_failed' as is_conditional
        from unnest(v_open) as u (step_slug)
        cross join lateral (
            select * from holdfast.steps s
            where s.handler = p_handler and s.step_slug = u.step_slug limit 1
        ) as s
        cross join lateral (
            select (count(*) filter (
                where d.dep_slug not in (select unnest(v_open)) or cardinality(p_again) = 0
                ))::int as done
            from holdfast.deps d
            where d.handler = p_handler and d.step_slug = u.step_slug
        ) as c
    ), written as (
        insert into holdfast.step_states as t (run_id, step_slug, deps_done)
        select p_run_id, c.step_slug, c.done from counted c where c.deps_count > 1
        order by c.step_slug
        on conflict (run_id, step_slug) do update set deps_done = excluded.deps_done
    )
    select coalesce(array_agg((p_run_id, p_handler, c.step_slug, c.step_type, c.is_conditional)
        ::holdfast._ready_step order by c.step_index), '{}')
    into v_ready
    from counted c
    where c.done = c.deps_count and (
        c.step_slug in (select unnest(p_again)) or c.step_slug = '');
    return holdfast._as_work(a.notices)
    from holdfast._advance_flows(holdfast.now(), '{}', v_ready, '{}', '{}', null) as a;
end $$;
