-- Forks of runs of flows: new runs that begin with what others have, with other values.

-- Start a new run that begins with what another has completed and skipped. Steps of p_results (an
-- object by step) are completed with these outputs, whatever the other run has of them; all steps
-- after them run again, and p_from with all after it. With p_input all steps run again but those of
-- p_results. The new run has what retry_flow gives it; the other, which may be open, stays as it
-- is.
--
-- Outcomes: 'forked', 'exists' if the new id is taken, 'missing', 'unknown_key' for a step that the
-- flow does not have.
-- Refuses values that are not allowed (22004, 22023), a result of a map that is not an array, an
-- input over which the flow cannot map, and runs of workflows (22023).
-- Locks: the flow's starts, shared; the other run, so that it is not deleted; its turn row, shared,
-- so that none of its maps gets its last result while it is read; the new id. Called by clients.
create or replace function holdfast.fork_flow(
    p_run_id uuid, p_new_run_id uuid, p_from text default null, p_input json default null,
    p_results json default null, out outcome text, out notices text[]
)
language plpgsql
as $$
declare
    v_origin holdfast.runs;
    v_is_there boolean;
    v_handler text;
begin
    perform holdfast._check_fork(p_run_id, p_new_run_id, false, p_input, p_results, null);
    select r.* into v_origin from holdfast.runs r where r.run_id = p_run_id;
    if v_origin.kind <> 'flow' then
        raise invalid_parameter_value using message = format(
            'run %s is not one of a flow: fork it with fork_run', p_run_id);
    end if;
    perform pg_advisory_xact_lock_shared(hashtext('holdfast.flow'), hashtext(v_origin.name));
    v_is_there := holdfast._hold_runs(array[p_run_id]);
    select r.* into v_origin from holdfast.runs r where r.run_id = p_run_id;  -- as it is by now
    perform from holdfast.tasks t where t.run_id = p_run_id and t.key = '' for share;
    v_handler := v_origin.name || '@' || v_origin.version;
    outcome := case
        when holdfast._has_run(p_new_run_id) then 'exists'
        when not v_is_there or not exists (
            select from holdfast.flows f where f.handler = v_handler)
        then 'missing'  -- the flow or the run may have been deleted while this waited
        when not holdfast._has_steps(v_handler, p_from, p_results) then 'unknown_key' end;
    if outcome is null then
        perform holdfast._check_results(v_handler, p_results);
        select case c.outcome when 'started' then 'forked' else c.outcome end, c.notices
        into outcome, notices
        from holdfast._continue_flow(
            v_origin, v_handler, p_new_run_id, p_from, p_input, p_results) as c;
    end if;
end $$;

-- Return true if a flow has the steps that a fork names. Called by fork_flow.
create or replace function holdfast._has_steps(p_handler text, p_from text, p_results json)
returns boolean
language sql stable
as $$
    select not exists (
        select from (
            select k.key from json_object_keys(p_results) as k (key)
            union all
            select p_from where p_from is not null
        ) as n (step_slug)
        where n.step_slug = '' or not exists (
            select from holdfast.steps s
            where s.handler = p_handler and s.step_slug = n.step_slug))
$$;

-- Refuse results of maps that are not arrays (22023). Called by fork_flow.
create or replace function holdfast._check_results(p_handler text, p_results json) returns void
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_wrong text;
begin
    select s.step_slug into v_wrong
    from json_object_keys(p_results) as k (key)
    cross join lateral (
        select s.step_slug from holdfast.steps s
        where s.handler = p_handler and s.step_slug = k.key and s.step_type = 'map' limit 1
    ) as s
    where json_typeof(p_results -> k.key) <> 'array'
    order by s.step_slug limit 1;
    if found then
        raise invalid_parameter_value using message = format(
            'step %s is a map: its result is an array of the results of its elements, not %s',
            v_wrong, json_typeof(p_results -> v_wrong));
    end if;
end $$;

-- Complete steps of a new run with outputs that were given; the elements of a map get a result
-- each. Locks nothing that others wait for. Called by _continue_flow.
create or replace function holdfast._give_results(
    p_run_id uuid, p_handler text, p_results json, p_given text[]
) returns void
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    if cardinality(p_given) = 0 then
        return;
    end if;
    with given as materialized (
        select s.step_slug, s.step_type = 'map' as is_map, p_results -> s.step_slug as output
        from unnest(p_given) as g (step_slug)
        cross join lateral (
            select s.step_slug, s.step_type from holdfast.steps s
            where s.handler = p_handler and s.step_slug = g.step_slug limit 1
        ) as s
    ), elements as (
        insert into holdfast.step_tasks (
            run_id, step_slug, task_index, output, attempts, started_at, completed_at)
        select p_run_id, g.step_slug, e.place - 1, e.value, 0, v_now, v_now
        from given g
        cross join lateral json_array_elements(case when g.is_map then g.output end)
            with ordinality as e (value, place)
    )
    insert into holdfast.step_states (run_id, step_slug, status, initial_tasks, remaining_tasks,
        output, started_at, ended_at)
    select p_run_id, g.step_slug, 'completed', c.tasks, 0,
        case when not g.is_map or c.tasks = 0 then g.output end, v_now, v_now
    from given g
    cross join lateral (
        select case when g.is_map then json_array_length(g.output) else 1 end as tasks
    ) as c;
end $$;
