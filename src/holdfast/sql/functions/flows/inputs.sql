-- What steps are given, and what runs of flows return: text put together from the JSON of inputs
-- and outputs, which is never parsed again.

-- Return a step's output as text: a map's is gathered from its elements. Null if it has none.
-- Called by _child_input, _step_input and flow_steps.
create or replace function holdfast._step_output(p_run_id uuid, p_step text) returns text
language plpgsql stable
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

-- Return the errors of a map's elements that failed, by their index, as text. Called by
-- _step_input.
create or replace function holdfast._element_errors(p_run_id uuid, p_step text) returns text
language plpgsql stable
as $$
begin
    return '{' || string_agg('"' || x.task_index || '":' || x.error, ',' order by x.task_index)
        || '}'
    from holdfast.step_tasks x
    where x.run_id = p_run_id and x.step_slug = p_step and x.error is not null;
end $$;

-- Return what a step is given: {"run": …, dependency: its output, …}, without dependencies that
-- were skipped. The errors of those that failed, or were skipped because another failed, are in
-- {"$failed": {dependency: …}}; those of a map's elements, which are null in its output, by their
-- index. `run` is there if p_with_run; with null, if the step wants it.
-- Of the step '' that is the run's output, without `run`. No row unless p_wanted. It has no
-- settings, so that PostgreSQL makes it a part of the query that calls it: so many steps cost one
-- query. Called by _given_to_steps, end_step_tasks, _lease_messages, _fail_illegible and
-- _step_inputs.
create or replace function holdfast._step_input(
    p_run_id uuid, p_handler text, p_step text, p_wanted boolean, p_with_run boolean default null
) returns table (input text)
language sql stable
begin atomic
    select '{' || concat_ws(',', (
        select '"run":' || r.input from holdfast.runs r
        where r.run_id = p_run_id and p_step <> '' and coalesce(p_with_run, (
            select s.wants_run from holdfast.steps s
            where s.handler = p_handler and s.step_slug = p_step limit 1))
    ), x.outputs, '"$failed":{' || x.failures || '}') || '}'
    from (
        select string_agg('"' || d.dep_slug || '":' || coalesce(
                s.output::text, holdfast._step_output(p_run_id, d.dep_slug)), ','
                order by d.dep_slug) filter (where s.status = 'completed') as outputs,
            string_agg('"' || d.dep_slug || '":' || case when s.failed_tasks is null
                then s.error::text else holdfast._element_errors(p_run_id, d.dep_slug) end, ','
                order by d.dep_slug)
                filter (where s.status = 'failed' or s.skip_reason = 'dependency_failed'
                    or s.status = 'completed' and s.failed_tasks > 0 and p_step <> '')
                as failures
        from (
            select d.dep_slug from holdfast.deps d
            where d.handler = p_handler and d.step_slug = p_step and not d.is_implied offset 0
        ) as d
        cross join lateral (
            select s.output, s.status, s.skip_reason, s.error, case when s.status = 'completed'
                then s.failed_tasks end as failed_tasks
            from holdfast.step_states s
            where s.run_id = p_run_id and s.step_slug = d.dep_slug limit 1
        ) as s
        where p_wanted
    ) as x
    where p_wanted
    limit 1;
end;

-- Return what the tasks of steps are given, and the hashes of the shapes of their flows, '' for one
-- that SQL has made; nulls for other tasks. The arrays are parallel. Locks nothing. Called by
-- claim_tasks, for claims that have such tasks.
create or replace function holdfast._given_to_steps(
    p_run_ids uuid[], p_keys text[], out inputs text[], out hashes text[]
)
language plpgsql stable
as $$
begin
    select array_agg(i.input order by u.place), array_agg(case when t.kind = 'step' then (
        select coalesce(f.shape_hash, '') from holdfast.flows f where f.handler = t.handler
    ) end order by u.place)
    into inputs, hashes
    from unnest(p_run_ids, p_keys) with ordinality as u (run_id, key, place)
    cross join lateral (
        select t.kind, t.handler, t.payload from holdfast.tasks t
        where t.run_id = u.run_id and t.key = u.key limit 1
    ) as t
    left join lateral holdfast._step_input(
        u.run_id, t.handler, u.key, t.kind = 'step' and t.payload is null) as i on true;
end $$;

-- Return what steps are given, in the order of the steps; see _step_input. Called by _end_flows and
-- _condition_met.
create or replace function holdfast._step_inputs(
    p_steps holdfast._flow_step[], p_with_run boolean default null
) returns text[]
language plpgsql stable
as $$
begin
    return array(
        select i.input
        from unnest(p_steps) with ordinality as u (run_id, handler, step_slug, place)
        cross join lateral holdfast._step_input(
            u.run_id, u.handler, u.step_slug, true, p_with_run) as i
        order by u.place);
end $$;

-- Return true if a step's conditions hold, null if they cannot be judged: jsonb refuses a value.
-- Root steps are judged by the run's input itself; for others it is read only if a pattern names
-- `run`: it may be large, and there may be many of them. One with the rule one_failed needs a
-- dependency that failed, or was skipped because another failed. Called by _judge_steps.
create or replace function holdfast._condition_met(p_run_id uuid, p_handler text, p_step text)
returns boolean
language plpgsql stable
as $$
declare
    v_step holdfast.steps;
    v_input jsonb;
begin
    select s.* into v_step from holdfast.steps s
    where s.handler = p_handler and s.step_slug = p_step;
    if v_step.trigger_rule = 'one_failed' and not exists (
        select from holdfast.deps d
        cross join lateral (
            select t.status, t.skip_reason from holdfast.step_states t
            where t.run_id = p_run_id and t.step_slug = d.dep_slug limit 1
        ) as t
        where d.handler = p_handler and d.step_slug = p_step
            and (t.status = 'failed' or t.skip_reason = 'dependency_failed'))
    then
        return false;
    end if;
    v_input := case v_step.deps_count
        when 0 then (select r.input from holdfast.runs r where r.run_id = p_run_id)::jsonb
        else (holdfast._step_inputs(
            array[(p_run_id, p_handler, p_step)::holdfast._flow_step],
            coalesce(v_step.required_input_pattern ? 'run', false)
                or coalesce(v_step.forbidden_input_pattern ? 'run', false)))[1]::jsonb end;
    return (v_step.required_input_pattern is null or v_input @> v_step.required_input_pattern)
        and (v_step.forbidden_input_pattern is null
            or not v_input @> v_step.forbidden_input_pattern);
exception when data_exception or program_limit_exceeded then
    return null;
end $$;
