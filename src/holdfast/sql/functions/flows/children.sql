-- Runs of flows as children, and runs as the steps of flows.

-- Start runs of flows that runs of workflows asked for. A start that start_flows would refuse is
-- ChildFailed in the parent's log: the parent's commit must not fail because of it, now and each
-- time that it is tried again. Returns the ids that were new, in no order, and (topic, payload)
-- notices.
-- Locks: the flows' starts, shared; ids of runs, in order; expects the turn rows of the parents
-- locked; events. Called by _start_children.
create or replace function holdfast._start_child_flows(
    p_now timestamptz, p_starts holdfast._start[], out created uuid[], out notices text[]
)
language plpgsql
as $$
declare
    v_each record;
    v_starts holdfast._start[];
    v_begun text[];
begin
    perform holdfast._lock_starts(p_starts);
    for v_each in
        select r.start, r.kind, r.message from holdfast._judge_starts(p_starts) as r
        order by (r.start).parent_run_id, r.place
    loop
        if v_each.kind is null then
            v_starts := v_starts || v_each.start;
        elsif not holdfast._has_run((v_each.start).run_id) then
            notices := notices || holdfast._refuse_child(p_now, (v_each.start).parent_run_id,
                (v_each.start).parent_key, (v_each.start).run_id, v_each.kind, v_each.message);
        end if;
    end loop;
    created := '{}';
    if v_starts is not null then
        select s.created, s.notices into created, v_begun
        from holdfast._start_flows(p_now, v_starts) as s;
        notices := notices || v_begun;
    end if;
end $$;

-- Return those of some runs that are runs of flows and have not ended. Locks nothing. Called by
-- _lock_family and _lock_families.
create or replace function holdfast._flows_among(p_run_ids uuid[]) returns uuid[]
language plpgsql stable
as $$
begin
    return array(
        select distinct u.run_id
        from unnest(p_run_ids) as u (run_id)
        cross join lateral (
            select t.kind from holdfast.tasks t where t.run_id = u.run_id and t.key = '' limit 1
        ) as t
        where t.kind = 'flow');
end $$;

-- Return true if one of these runs of flows has a parent, or a step that is a run. Locks nothing.
-- Called by _lock_flows.
create or replace function holdfast._are_nested(p_run_ids uuid[]) returns boolean
language plpgsql stable
as $$
declare
    v_turns record;
begin
    select bool_or(t.parent_run_id is not null) as have_parents,
        array_agg(distinct t.handler) as handlers
    into v_turns
    from unnest(p_run_ids) as u (run_id)
    cross join lateral (
        select t.parent_run_id, t.handler from holdfast.tasks t
        where t.run_id = u.run_id and t.key = '' limit 1
    ) as t;
    return coalesce(v_turns.have_parents, false) or exists (
        select from holdfast.steps s
        where s.handler = any (v_turns.handlers) and s.runs is not null);
end $$;

-- Start the runs that are steps, or elements of maps, for tasks that are still there and not
-- paused, nor their flows: one for each attempt, in the order of the flows' runs, of their steps
-- and of the elements, those of workflows before those of flows. It is given the element, or the
-- output of what the step depends on, or the input of the flow's run, and has the priority, the
-- headers and the retention of that. An attempt that is not the first begins after the pause that
-- the step's options say; none begins before the delayed start of the flow's run. If a flow does
-- not exist or refuses the input, the step's task fails for good. Returns (topic, payload) notices.
-- Locks: expects the turn rows of the flows' runs, and of all that their ends concern, locked;
-- flows' starts, shared; ids of runs. Called by _advance_flows, end_step_tasks and
-- _start_paused_steps, as the last that they do.
create or replace function holdfast._start_child_steps(
    p_now timestamptz, p_tasks holdfast._flow_step[]
) returns text[]
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_new record;
    v_begun record;
    v_notices text[];
begin
    p_tasks := holdfast._hold_paused(p_tasks);
    for v_new in
        select c.runs_kind, array_agg(c.start) as starts
        from (
            select s.runs_kind, holdfast._new_start(
                holdfast._step_run_id(t.run_id, t.key, t.attempts, r.created_at),
                split_part(s.runs, '@', 1),
                coalesce(t.payload, holdfast._child_input(t.run_id, t.handler, s.step_slug)),
                split_part(s.runs, '@', 2)::int, null, t.queue, t.priority::int,
                greatest(p_now, greatest(m.began_at, r.due_at) + interval '1 second'
                    * case t.attempts when 1 then coalesce(s.opt_start_delay, 0)
                        else holdfast._step_pause(o.base_delay, t.attempts - 1, o.jitter) end),
                s.opt_timeout::float8, extract(epoch from r.retention)::float8, null, r.headers,
                t.run_id, t.key, 'cancel') as start
            from unnest(p_tasks) as u
            cross join lateral (
                select t.run_id, t.key, t.handler, t.attempts, t.queue, t.priority, t.payload,
                    nullif(split_part(t.key, ':', 2), '')::int as index
                from holdfast.tasks t
                where t.run_id = u.run_id and t.key = u.step_slug and t.kind = 'child'
                    and not t.paused limit 1
            ) as t
            cross join lateral (
                select s.step_slug, s.step_index, s.runs, s.runs_kind, s.opt_timeout,
                    s.opt_start_delay
                from holdfast.steps s
                where s.handler = t.handler and s.step_slug = split_part(t.key, ':', 1) limit 1
            ) as s
            cross join lateral (
                select r.headers, r.retention, r.due_at, r.created_at from holdfast.runs r
                where r.run_id = t.run_id limit 1
            ) as r
            cross join lateral (  -- a delay of elements counts from when their map began
                select case when t.attempts = 1 and t.index >= 0 and s.opt_start_delay > 0 then (
                    select x.started_at from holdfast.step_states x
                    where x.run_id = t.run_id and x.step_slug = s.step_slug
                ) else p_now end as began_at
            ) as m
            cross join lateral holdfast._step_options(t.handler, s.step_slug) as o
            order by s.runs_kind desc, t.run_id, s.step_index, t.index
        ) as c
        group by c.runs_kind order by c.runs_kind desc
    loop
        update holdfast.tasks t set started_at = u.visible_at  -- a step begins when its run does
        from unnest(v_new.starts) as u
        where t.run_id = u.parent_run_id and t.key = u.parent_key and u.visible_at > p_now
            and t.attempts = 1 and strpos(t.key, ':') = 0;
        perform holdfast._use_payloads(u.run_id, array[u.input])
        from unnest(v_new.starts) as u
        where holdfast._refers(u.input);
        if v_new.runs_kind = 'workflow' and exists (
            select from unnest(v_new.starts) as u
            where exists (select from holdfast.start_rules r where r.name = u.name))
        then
            v_notices := v_notices || holdfast._start_ruled_steps(p_now, v_new.starts);
            continue;
        elsif v_new.runs_kind = 'workflow' then
            perform holdfast._start_runs(p_now, v_new.starts);
            select v_notices || array_agg(distinct array['starts', u.queue]) into v_notices
            from unnest(v_new.starts) as u;
            continue;
        end if;
        perform holdfast._lock_starts(v_new.starts);
        select array_agg(r.start order by r.place) filter (where r.kind is null) as starts,
            array_agg((r.start).parent_run_id order by r.place) filter (where r.kind is not null)
                as parents,
            array_agg((r.start).parent_key order by r.place) filter (where r.kind is not null)
                as keys,
            array_agg(json_build_object('kind', 'holdfast.errors.' || r.kind,
                'message', r.message) order by r.place) filter (where r.kind is not null) as errors
        into v_begun
        from holdfast._judge_starts(v_new.starts) as r
        cross join lateral (  -- a start that a rule refused may have ended the flow's run
            select from holdfast.tasks t
            where t.run_id = (r.start).parent_run_id and t.key = (r.start).parent_key limit 1
        ) as t;
        if v_begun.starts is not null then
            select v_notices || s.notices into v_notices
            from holdfast._start_flows(p_now, v_begun.starts) as s;
        end if;
        if v_begun.parents is not null then
            v_notices := v_notices || holdfast._end_child_steps(
                p_now, v_begun.parents, v_begun.keys, null, v_begun.errors, false);
        end if;
    end loop;
    return v_notices;
end $$;

-- Return the id of the run that stands for an attempt of a step or of an element. When the flow's
-- run was created tells it from a deleted run that had its id. Called by _start_child_steps and
-- _paused_steps.
create or replace function holdfast._step_run_id(
    p_run_id uuid, p_key text, p_attempt int, p_created_at timestamptz
) returns uuid
language sql stable
return holdfast.keyed_run_id(
    p_run_id::text, format('%s#%s@%s', p_key, p_attempt, holdfast._micros(p_created_at)));

-- Return what a run that is a step is given: the output of what the step depends on, null if that
-- was skipped; without a dependency the input of the flow's run. Called by _start_child_steps.
create or replace function holdfast._child_input(p_run_id uuid, p_handler text, p_step text)
returns json
language plpgsql stable
as $$
declare
    v_dep text;
begin
    select d.dep_slug into v_dep from holdfast.deps d
    where d.handler = p_handler and d.step_slug = p_step;
    if v_dep is null then
        return (select r.input from holdfast.runs r where r.run_id = p_run_id);
    end if;
    return coalesce(holdfast._step_output(p_run_id, v_dep), 'null')::json;
end $$;

-- End tasks of steps that runs stand for; a failure is tried again if p_retryable and as the step's
-- options say. The arrays are parallel. Returns (topic, payload) notices.
-- Locks: as end_step_tasks, whose turn rows are expected locked. Called by _tell_flow,
-- _start_child_steps and _start_ruled_steps.
create or replace function holdfast._end_child_steps(
    p_now timestamptz, p_run_ids uuid[], p_keys text[], p_outputs json[], p_errors json[],
    p_retryable boolean
) returns text[]
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return e.notices
    from holdfast.end_step_tasks('', p_run_ids, p_keys, null, p_outputs, p_errors,
        array_fill(p_retryable, array[cardinality(p_keys)]), p_now => p_now) as e
    limit 1;
end $$;

-- Tell a run of a flow of the ends of runs that are steps of it: outputs are those of the steps,
-- and a run that failed or took too long is tried again as the step's options say. One that was
-- cancelled or terminated is not. Returns (topic, payload) notices.
-- Locks: as _end_child_steps. Called by _tell_parents.
create or replace function holdfast._tell_flow(
    p_now timestamptz, p_run_id uuid, p_keys text[], p_children uuid[]
) returns text[]
language plpgsql
as $$
declare
    v_ends record;
    v_notices text[];
begin
    for v_ends in
        select r.status in ('completed', 'failed', 'timed_out') as is_retryable,
            array_agg(p_run_id) as run_ids, array_agg(u.key order by u.place) as keys,
            array_agg(r.output order by u.place) as outputs,
            array_agg(case when r.status <> 'completed' then json_build_object(
                'kind', 'holdfast.errors.ChildFailed', 'message', format('run %s %s', r.run_id,
                    case r.status when 'failed' then 'failed: ' || holdfast._error_line(r.error)
                        when 'timed_out' then 'took too long'
                        else 'was ' || r.status end),
                'status', r.status, 'child_run_id', r.run_id, 'cause', r.error) end
                order by u.place) as errors
        from unnest(p_keys, p_children) with ordinality as u (key, child_id, place)
        cross join lateral (
            select r.run_id, r.status, r.output, r.error from holdfast.runs r
            where r.run_id = u.child_id limit 1
        ) as r
        group by 1 order by 1 desc
    loop
        v_notices := v_notices || holdfast._end_child_steps(p_now, v_ends.run_ids,
            v_ends.keys, v_ends.outputs, v_ends.errors, v_ends.is_retryable);
    end loop;
    return v_notices;
end $$;

-- Ask the runs to stop that stood for these tasks, which were deleted. Returns (topic, payload)
-- notices.
-- Locks: expects the turn rows of the runs locked; then as _cancel. Called by _delete_step_tasks.
create or replace function holdfast._cancel_child_steps(
    p_now timestamptz, p_tasks holdfast._flow_step[], p_reason text
) returns text[]
language plpgsql
as $$
declare
    v_children uuid[] := array(
        select c.run_id
        from (select distinct t.run_id from unnest(p_tasks) as t) as r
        cross join lateral (
            select c.run_id, c.parent_run_id, c.parent_key, c.status from holdfast.runs c
            where c.parent_run_id = r.run_id offset 0
        ) as c
        join unnest(p_tasks) as t on t.run_id = c.parent_run_id and t.step_slug = c.parent_key
        where c.status = 'running');
begin
    return c.notices
    from holdfast._cancel(p_now, v_children, array_fill(
        holdfast._reason(p_reason), array[cardinality(v_children)])) as c;
end $$;
