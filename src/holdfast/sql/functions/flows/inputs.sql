-- What steps are given, and what runs of flows return: text put together from the JSON of inputs and
-- outputs, which is never parsed again.

-- Return a step's output as text: a map's is gathered from its elements. Null if it has none. Called
-- by _step_inputs.
create or replace function holdfast._step_output(p_run_id uuid, p_step text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_output text;
    v_status text;
begin
    select s.output::text, s.status into v_output, v_status
    from holdfast.step_states s where s.run_id = p_run_id and s.step_slug = p_step;
    if v_status is distinct from 'completed' then
        return null;
    elsif v_output is null then
        select '[' || string_agg(x.output::text, ',' order by x.task_index) || ']' into v_output
        from holdfast.step_tasks x where x.run_id = p_run_id and x.step_slug = p_step;
    end if;
    return coalesce(v_output, 'null');
end $$;

-- Return what steps are given, in the order of the steps: {"run": …, dependency: its output, …},
-- without dependencies that were skipped. `run` is only for steps that want it, unless p_judged: a
-- condition may be about it. Of the step '' that is the run's output, without `run`.
-- Called by claim_tasks through _step_input, by _advance_flows and start_tasks.
create or replace function holdfast._step_inputs(
    p_steps holdfast._flow_step[], p_judged boolean default false
) returns text[]
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    return array(
        select '{' || concat_ws(',', r.run, d.deps) || '}'
        from unnest(p_steps) with ordinality as u (run_id, handler, step_slug, place)
        left join lateral (
            select s.wants_run from holdfast.steps s
            where s.handler = u.handler and s.step_slug = u.step_slug limit 1
        ) as s on true
        left join lateral (
            select '"run":' || r.input as run from holdfast.runs r
            where u.step_slug <> '' and (s.wants_run or p_judged) and r.run_id = u.run_id limit 1
        ) as r on true
        left join lateral (
            select string_agg('"' || d.dep_slug || '":' || coalesce(
                s.output::text, holdfast._step_output(u.run_id, d.dep_slug)), ','
                order by d.dep_slug) as deps
            from (
                select d.dep_slug from holdfast.deps d
                where d.handler = u.handler and d.step_slug = u.step_slug offset 0
            ) as d
            cross join lateral (
                select s.output, s.status from holdfast.step_states s
                where s.run_id = u.run_id and s.step_slug = d.dep_slug limit 1
            ) as s
            where s.status = 'completed'
        ) as d on true
        order by u.place);
end $$;

-- Return what one step is given. Called by claim_tasks and _condition_met.
create or replace function holdfast._step_input(p_run_id uuid, p_handler text, p_step text)
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (holdfast._step_inputs(array[(p_run_id, p_handler, p_step)::holdfast._flow_step]))[1];
end $$;

-- Return true if a step's conditions hold, null if they cannot be judged: jsonb refuses a value.
-- Root steps are judged by the run's input itself. Called by _judge_steps.
create or replace function holdfast._condition_met(p_run_id uuid, p_handler text, p_step text)
returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_step holdfast.steps;
    v_input jsonb;
begin
    select s.* into v_step from holdfast.steps s
    where s.handler = p_handler and s.step_slug = p_step;
    v_input := case v_step.deps_count
        when 0 then (select r.input from holdfast.runs r where r.run_id = p_run_id)::jsonb
        else (holdfast._step_inputs(
            array[(p_run_id, p_handler, p_step)::holdfast._flow_step], true))[1]::jsonb end;
    return (v_step.required_input_pattern is null or v_input @> v_step.required_input_pattern)
        and (v_step.forbidden_input_pattern is null
            or not v_input @> v_step.forbidden_input_pattern);
exception when data_exception then
    return null;
end $$;
