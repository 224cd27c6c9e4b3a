-- What becomes of steps that are ready, and of runs whose steps have all ended.

-- Return true if steps of a shape that fail do not end their run: one of its steps has another
-- trigger rule than none_failed. Called by _judge_steps, _judge_ends and _step_options.
create or replace function holdfast._fails_softly(p_handler text) returns boolean
language plpgsql stable
as $$
begin
    return (
        select s.trigger_rule = 'one_failed' from holdfast.steps s
        where s.handler = p_handler and s.step_slug = '');
end $$;

-- Return the error of step p_step, for a step that was judged. Called by _judge_steps.
create or replace function holdfast._judgment(
    p_verdict text, p_step text, p_judged text, p_dep text, p_json_type text
) returns json
language sql immutable
as $$
    select json_build_object(
        'kind', case p_verdict when 'no array' then 'holdfast.errors.FlowTypeViolation'
            else 'holdfast.errors.StepFailed' end,
        'step', p_step,
        'message', case p_verdict
            when 'no array' then format(
                '[TYPE_VIOLATION] Map step %s expects array input but '
                'dependency %s produced %s', p_judged, p_dep, coalesce(p_json_type, 'null'))
            when 'unknown' then 'Condition cannot be judged'
            else 'Condition not met' end)
$$;

-- Judge steps that are ready: `singles` and `maps` may begin, `empty` are maps without elements,
-- `done` the ends of runs that are complete, `unmet` the steps whose conditions do not hold, with
-- 'cascaded' or 'skipped', and `wrong` the steps because of which runs fail, one a run: a map over
-- what is not an array, whatever its conditions say; a condition that does not hold where
-- when_unmet is fail, or that cannot be judged. Of runs that fail nothing else is returned. Where a
-- failure does not end the run, such steps are among `unmet`, as 'failed'; `errors` are parallel.
-- Locks nothing. Called by _advance_flows.
create or replace function holdfast._judge_steps(
    p_ready holdfast._ready_step[], p_failures holdfast._flow_failure[],
    out singles holdfast._flow_step[], out maps holdfast._begun_map[],
    out empty holdfast._flow_step[], out done holdfast._flow_step[],
    out unmet holdfast._step_end[], out errors json[], out wrong holdfast._flow_entry[]
)
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    with seen as materialized (
        select r.run_id, r.handler, r.step_slug, s.step_index, s.when_unmet, e.elements,
            e.dep_slug, case
                when r.step_type = 'end' then 'end'
                when r.step_type = 'map' and e.elements is null then 'no array'
                when not r.is_conditional then r.step_type
                when c.is_met then r.step_type
                when c.is_met is null then 'unknown'
                when s.when_unmet = 'fail' then 'fail'
                else 'unmet' end as verdict, e.json_type
        from unnest(p_ready) as r
        cross join lateral (
            select s.step_index, s.when_unmet from holdfast.steps s
            where s.handler = r.handler and s.step_slug = r.step_slug limit 1
        ) as s
        left join lateral (  -- a condition of the join would not keep it from being counted
            select e.* from holdfast._count_elements(r.run_id, r.handler, r.step_slug) as e
            where r.step_type = 'map' limit 1
        ) as e on true
        cross join lateral (
            select case when r.is_conditional and r.step_type <> 'end'
                and not (r.step_type = 'map' and e.elements is null)
                then holdfast._condition_met(r.run_id, r.handler, r.step_slug) end as is_met
            limit 1  -- once, though it is asked for more often
        ) as c
        where not exists (select from unnest(p_failures) as f where f.run_id = r.run_id)
    ), judged as materialized (
        select s.*, s.verdict in ('no array', 'unknown', 'fail') as is_wrong, case
            when s.verdict in ('no array', 'unknown', 'fail')
            then holdfast._fails_softly(s.handler) end as is_soft
        from seen s
    ), failing as materialized (
        select distinct on (j.run_id) j.run_id,
            case j.verdict when 'no array' then j.dep_slug else j.step_slug end as step_slug,
            j.verdict, j.step_slug as judged_slug, j.dep_slug, j.json_type
        from judged j
        where j.is_wrong and not j.is_soft
        order by j.run_id, j.verdict <> 'no array', j.step_index
    ), open as (
        select j.* from judged j
        where not exists (select from failing f where f.run_id = j.run_id)
    )
    select coalesce(array_agg((o.run_id, o.handler, o.step_slug)::holdfast._flow_step
            order by o.run_id, o.step_index) filter (where o.verdict = 'single'), '{}'),
        coalesce(array_agg((o.run_id, o.handler, o.step_slug, o.elements)::holdfast._begun_map
            order by o.run_id, o.step_index)
            filter (where o.verdict = 'map' and o.elements > 0), '{}'),
        array_agg((o.run_id, o.handler, o.step_slug)::holdfast._flow_step
            order by o.run_id, o.step_index)
            filter (where o.verdict = 'map' and o.elements = 0),
        coalesce(array_agg((o.run_id, o.handler, o.step_slug)::holdfast._flow_step)
            filter (where o.verdict = 'end'), '{}'),
        array_agg((o.run_id, o.handler, o.step_slug,
            case when o.is_wrong then 'failed' when o.when_unmet = 'skip-cascade' then 'cascaded'
                else 'skipped' end)::holdfast._step_end order by o.run_id, o.step_index)
            filter (where o.verdict = 'unmet' or o.is_wrong),
        array_agg(case when o.is_wrong then holdfast._judgment(
                o.verdict, o.step_slug, o.step_slug, o.dep_slug, o.json_type) end
            order by o.run_id, o.step_index)
            filter (where o.verdict = 'unmet' or o.is_wrong),
        (select array_agg((f.run_id, 'FlowStepFailed', f.step_slug, json_build_object('error',
            holdfast._judgment(f.verdict, f.step_slug, f.judged_slug, f.dep_slug, f.json_type))
            )::holdfast._flow_entry order by f.run_id) from failing f)
    into singles, maps, empty, done, unmet, errors, wrong
    from open o;
end $$;

-- Count the elements that a map will have, null if what it maps over is not an array, with its
-- type: the run's input, or the output of its only dependency, which a step that was skipped does
-- not have. Called by _judge_steps.
create or replace function holdfast._count_elements(
    p_run_id uuid, p_handler text, p_step text,
    out elements int, out dep_slug text, out json_type text
)
language plpgsql stable
as $$
declare
    v_state holdfast.step_states;
    v_value json;
begin
    select d.dep_slug into dep_slug from holdfast.deps d
    where d.handler = p_handler and d.step_slug = p_step;
    if dep_slug is null then
        select r.input into v_value from holdfast.runs r where r.run_id = p_run_id;
    else
        select s.* into v_state from holdfast.step_states s
        where s.run_id = p_run_id and s.step_slug = dep_slug;
        v_value := v_state.output;
    end if;
    json_type := json_typeof(v_value);
    elements := case
        when v_state.status = 'skipped' then 0
        when v_value is null then v_state.initial_tasks  -- of a map, whose output is its elements
        when json_type = 'array' then json_array_length(v_value) end;
end $$;

-- Decide how runs end whose steps have all ended. `done` complete. The others are `failures`: runs
-- that were asked to cancel, without an error; and runs with a step that failed and that no other
-- handled: a last step, or one from which a last step is reached only through steps that were
-- skipped because of it. The error is that of the first such step. Locks nothing. Called by
-- _advance_flows.
create or replace function holdfast._judge_ends(
    p_done holdfast._flow_step[],
    out done holdfast._flow_step[], out failures holdfast._flow_failure[]
)
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    with recursive soft as materialized (
        select d.run_id, d.handler, exists (
            select from holdfast.events e
            where e.run_id = d.run_id and e.event_type = 'WorkflowCancelRequested' offset 0
            ) as is_cancelled
        from unnest(p_done) as d
        where holdfast._fails_softly(d.handler)
    ), down as (
        select s.run_id, s.handler, t.step_slug, t.step_slug as failed
        from soft s
        cross join lateral (
            select t.step_slug from holdfast.step_states t
            where t.run_id = s.run_id and t.status = 'failed' offset 0
        ) as t
        union
        select w.run_id, w.handler, d.step_slug, w.failed
        from down w
        cross join lateral (
            select d.step_slug from holdfast.deps d
            where d.handler = w.handler and d.dep_slug = w.step_slug offset 0
        ) as d
        cross join lateral (
            select s.trigger_rule from holdfast.steps s
            where s.handler = w.handler and s.step_slug = d.step_slug limit 1
        ) as s
        where s.trigger_rule = 'none_failed' and (
            select t.status from holdfast.step_states t
            where t.run_id = w.run_id and t.step_slug = d.step_slug
        ) is distinct from 'completed'
    ), unhandled as (
        select distinct on (w.run_id) w.run_id, t.error
        from down w
        cross join lateral (
            select t.error, t.ended_at from holdfast.step_states t
            where t.run_id = w.run_id and t.step_slug = w.failed limit 1
        ) as t
        cross join lateral (
            select s.step_index from holdfast.steps s
            where s.handler = w.handler and s.step_slug = w.failed limit 1
        ) as s
        where exists (
            select from holdfast.deps d
            where d.handler = w.handler and d.dep_slug = w.step_slug and d.step_slug = '')
        order by w.run_id, t.ended_at, s.step_index
    ), judged as (
        select d.run_id, d.handler, d.step_slug, s.is_cancelled or u.run_id is not null as is_bad,
            case when not s.is_cancelled then u.error end as error
        from unnest(p_done) as d
        left join soft s on s.run_id = d.run_id
        left join unhandled u on u.run_id = d.run_id
    )
    select coalesce(array_agg((j.run_id, j.handler, j.step_slug)::holdfast._flow_step)
            filter (where j.is_bad is not true), '{}'),
        coalesce(array_agg((j.run_id, j.error)::holdfast._flow_failure
            order by j.run_id) filter (where j.is_bad), '{}')
    into done, failures
    from judged j;
end $$;
