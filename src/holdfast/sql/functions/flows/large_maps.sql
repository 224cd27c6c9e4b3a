-- Results that are too large together: those of a map, and all that one step is given.

-- Fail maps that have completed if a step, or the run's output, would be given more than 256 MiB of
-- results as one value: a text has 1 GB at most in PostgreSQL, and a claim of such a step would
-- fail, with all else that it claims. on_exhausted decides, as after a result that cannot be
-- stored; the results are deleted. Another map may take any number of them, as it takes them one by
-- one. The ends, entries and failures are those of the caller, for _advance_flows. Notices are
-- (topic, payload).
-- Locks: expects the turn rows locked; as _skip_steps. Called by end_step_tasks.
create or replace function holdfast._end_large_maps(
    p_now timestamptz, inout ends holdfast._step_end[], inout entries holdfast._flow_entry[],
    inout failures holdfast._flow_failure[], out notices text[]
)
language plpgsql
as $$
declare
    v_map record;
    v_error json;
    v_skipped record;
begin
    for v_map in select m.* from holdfast._large_maps(ends) as m loop
        delete from holdfast.step_tasks x
        where x.run_id = v_map.run_id and x.step_slug = v_map.step_slug;
        continue when exists (select from unnest(failures) as f where f.run_id = v_map.run_id);
        v_error := json_build_object('kind', 'holdfast.errors.StepFailed', 'step', v_map.step_slug,
            'message', format('step %s failed: the results of its %s elements take %s MiB; one '
            'value takes 256 MiB at most: store them elsewhere, and return references',
            v_map.step_slug, v_map.elements, v_map.bytes >> 20));
        ends := array(
            select e from unnest(ends) as e
            where e.run_id <> v_map.run_id or e.step_slug <> v_map.step_slug);
        if v_map.outcome = 'failed' and not v_map.is_soft then
            select f.entries, _end_large_maps.failures || f.failures into entries, failures
            from holdfast._fail_steps(p_now, array[(v_map.run_id, 'FlowStepFailed',
                v_map.step_slug, json_build_object('error', v_error))::holdfast._flow_entry],
                entries) as f;
            continue;
        end if;
        entries := array(
            select e from unnest(entries) as e
            where e.run_id <> v_map.run_id or e.key <> v_map.step_slug
                or e.event_type <> 'FlowStepCompleted');
        update holdfast.step_states s set status = 'started', remaining_tasks = 1, ended_at = null
        where s.run_id = v_map.run_id and s.step_slug = v_map.step_slug;
        v_skipped := holdfast._skip_steps(p_now, array[(v_map.run_id, v_map.handler,
            v_map.step_slug, v_map.outcome)::holdfast._step_end], 'handler_failed', array[v_error]);
        ends := ends || v_skipped.ends;
        entries := entries || v_skipped.entries;
        notices := notices || v_skipped.notices;
    end loop;
end $$;

-- Return those maps that have completed whose results are too large, how they end, and if their
-- failure ends the run. Locks nothing. Called by _end_large_maps.
create or replace function holdfast._large_maps(p_ends holdfast._step_end[]) returns table (
    run_id uuid, handler text, step_slug text, outcome text, is_soft boolean, elements bigint,
    bytes bigint
)
language plpgsql stable
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    return query
    select e.run_id, e.handler, e.step_slug, case o.when_exhausted when 'fail' then 'failed'
        when 'skip-cascade' then 'cascaded' else 'skipped' end, o.is_soft, x.elements, x.bytes
    from unnest(p_ends) as e
    cross join lateral (
        select from holdfast.steps s
        where s.handler = e.handler and s.step_slug = e.step_slug and s.step_type = 'map' limit 1
    ) as s
    cross join lateral (
        select from (
            select d.step_slug from holdfast.deps d
            where d.handler = e.handler and d.dep_slug = e.step_slug offset 0
        ) as d
        cross join lateral (
            select g.step_type from holdfast.steps g
            where g.handler = e.handler and g.step_slug = d.step_slug limit 1
        ) as g
        where g.step_type <> 'map' limit 1
    ) as g
    cross join lateral (
        select count(*) as elements, sum(octet_length(x.output::text))::bigint as bytes
        from holdfast.step_tasks x where x.run_id = e.run_id and x.step_slug = e.step_slug
    ) as x
    cross join lateral holdfast._step_options(e.handler, e.step_slug) as o
    where e.outcome = 'completed' and x.bytes > 1 << 28
    order by e.run_id, e.step_slug;
end $$;

-- End steps that are to begin, and runs that are to complete, if what such a step is given, or the
-- run's output, takes more than 256 MiB: see _end_large_maps. on_exhausted of the step decides; the
-- run fails because of its output. The arrays are those of _advance_flows, without what has ended
-- by it. Locks: as _skip_steps. Called by _advance_flows.
create or replace function holdfast._end_overfull(
    p_now timestamptz, inout singles holdfast._flow_step[], inout done holdfast._flow_step[],
    inout ends holdfast._step_end[], inout entries holdfast._flow_entry[],
    inout failures holdfast._flow_failure[], inout notices text[]
)
language plpgsql
as $$
declare
    v_step record;
    v_error json;
    v_skipped record;
begin
    for v_step in select s.* from holdfast._overfull_steps(singles || done) as s loop
        singles := array_remove(singles, v_step.step);
        done := array_remove(done, v_step.step);
        continue when exists (select from unnest(failures) as f where f.run_id = v_step.run_id);
        v_error := json_build_object('kind', 'holdfast.errors.StepFailed', 'step',
            v_step.step_slug, 'message', format('step %s failed: what it is given takes %s MiB; '
            'one value takes 256 MiB at most: store results elsewhere, and return references',
            v_step.step_slug, (v_step.bytes >> 20) + 1));
        if v_step.step_slug = '' then
            v_error := json_build_object('kind', 'holdfast.errors.PayloadError', 'message', format(
                'the output of the run takes %s MiB; one value takes 256 MiB at most: store '
                'results elsewhere, and return references', (v_step.bytes >> 20) + 1));
            failures := failures || (v_step.run_id, v_error)::holdfast._flow_failure;
        elsif v_step.outcome = 'failed' and not v_step.is_soft then
            select f.entries, _end_overfull.failures || f.failures into entries, failures
            from holdfast._fail_steps(p_now, array[(v_step.run_id, 'FlowStepFailed',
                v_step.step_slug, json_build_object('error', v_error))::holdfast._flow_entry],
                entries) as f;
        else
            v_skipped := holdfast._skip_steps(p_now, array[(v_step.run_id, v_step.handler,
                v_step.step_slug, v_step.outcome)::holdfast._step_end], 'handler_failed',
                array[v_error]);
            ends := ends || v_skipped.ends;
            entries := entries || v_skipped.entries;
            notices := notices || v_skipped.notices;
        end if;
    end loop;
end $$;

-- Return those steps that would be given too much, how they end, and if their failure ends the run.
-- Without a map or a run and with 16 dependencies at most, of 16 MiB each, nothing is too much.
-- What depends on one map is judged with it. Locks nothing. Called by _end_overfull.
create or replace function holdfast._overfull_steps(p_steps holdfast._flow_step[]) returns table (
    step holdfast._flow_step, run_id uuid, handler text, step_slug text, outcome text,
    is_soft boolean, bytes bigint
)
language plpgsql stable
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    return query
    select u, u.run_id, u.handler, u.step_slug, case o.when_exhausted when 'fail' then 'failed'
        when 'skip-cascade' then 'cascaded' else 'skipped' end, o.is_soft, x.bytes
    from unnest(p_steps) as u
    cross join lateral (
        select from holdfast.steps s
        where s.handler = u.handler and s.step_slug = u.step_slug and s.deps_count > 1 limit 1
    ) as s
    cross join lateral (
        select array_agg(d.dep_slug) as slugs,
            count(*) > 16 or bool_or(g.step_type = 'map' or g.runs is not null) as may_be_large
        from (
            select d.dep_slug from holdfast.deps d
            where d.handler = u.handler and d.step_slug = u.step_slug and not d.is_implied offset 0
        ) as d
        cross join lateral (
            select g.step_type, g.runs from holdfast.steps g
            where g.handler = u.handler and g.step_slug = d.dep_slug limit 1
        ) as g
    ) as m
    cross join lateral (
        select sum(coalesce(octet_length(t.output::text), (
            select sum(octet_length(coalesce(x.output, x.error)::text))
            from holdfast.step_tasks x where x.run_id = u.run_id and x.step_slug = d.slug
            )))::bigint as bytes
        from unnest(m.slugs) as d (slug)
        cross join lateral (
            select t.output, t.status from holdfast.step_states t
            where t.run_id = u.run_id and t.step_slug = d.slug limit 1
        ) as t
        where m.may_be_large and t.status = 'completed'
    ) as x
    cross join lateral holdfast._step_options(u.handler, u.step_slug) as o
    where x.bytes > 1 << 28
    order by u.run_id, u.step_slug;
end $$;
