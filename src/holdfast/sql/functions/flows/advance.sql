-- What follows from the ends of steps, up to the steps that begin and the runs that end.

-- Advance runs of flows: from steps that ended, or from steps that are ready. Log entries of the
-- caller come in with p_entries, and are written before those of the cascade; runs that fail by
-- what the caller found come in with p_failures. Up to p_taker.room tasks that become ready are
-- leased to the taker at once: `handed`. Returns (topic, payload) notices.
--
-- Nothing begins before the cascade rests, so that a run that fails on the way begins nothing. The
-- number of rounds is the depth of the graph in steps that complete without work. It has no limit.
-- Locks: expects the turn rows of the runs, and of all that their ends concern, locked; tasks of
-- steps that are skipped, then states, events and runs. Called by end_step_tasks, _resume_flow,
-- _start_flows, _cancel_flows and run_as_flow.
create or replace function holdfast._advance_flows(
    p_now timestamptz, p_ends holdfast._step_end[], p_ready holdfast._ready_step[],
    p_entries holdfast._flow_entry[], p_failures holdfast._flow_failure[],
    p_taker holdfast._taker, out notices text[], out handed holdfast._handed_task[]
)
language plpgsql
as $$
declare
    v_ends holdfast._step_end[] := p_ends;
    v_ready holdfast._ready_step[] := p_ready;
    v_entries holdfast._flow_entry[] := p_entries;
    v_failures holdfast._flow_failure[] := p_failures;
    v_singles holdfast._flow_step[] := '{}';
    v_maps holdfast._begun_map[] := '{}';
    v_done holdfast._flow_step[] := '{}';
    v_round record;
    v_new record;  -- of a round: steps that may begin, and runs that may complete
    v_notices text[];
    v_begun record;
    v_children holdfast._flow_step[];
begin
    loop
        if cardinality(v_ends) > 0 then
            select c.ready, c.passed into v_ready, v_ends from holdfast._count_ends(v_ends) as c;
        end if;
        exit when cardinality(v_ready) = 0 and cardinality(v_ends) = 0;
        continue when cardinality(v_ready) = 0;
        if not exists (
            select from unnest(v_ready) as r where r.step_type = 'map' or r.is_conditional)
        then  -- the most common case
            select coalesce(array_agg((r.run_id, r.handler, r.step_slug)::holdfast._flow_step)
                    filter (where r.step_type = 'single'), '{}') as singles,
                coalesce(array_agg((r.run_id, r.handler, r.step_slug)::holdfast._flow_step)
                    filter (where r.step_type = 'end'), '{}') as done
            into v_new
            from unnest(v_ready) as r;
        else
            v_round := holdfast._judge_steps(v_ready, v_failures);
            select v_round.singles, v_round.done into v_new;
            v_maps := v_maps || v_round.maps;
            if cardinality(v_round.done) > 0 then
                select e.done, v_failures || e.failures into v_new.done, v_failures
                from holdfast._judge_ends(v_round.done) as e;
            end if;
            if v_round.wrong is not null then
                select f.entries, v_failures || f.failures into v_entries, v_failures
                from holdfast._fail_steps(p_now, v_round.wrong, v_entries) as f;
            end if;
            if v_round.empty is not null then
                v_ends := v_ends || holdfast._complete_empty(p_now, v_round.empty);
                v_entries := v_entries || array(
                    select (e.run_id, 'FlowStepCompleted', e.step_slug, null)::holdfast._flow_entry
                    from unnest(v_round.empty) as e);
            end if;
            if v_round.unmet is not null then
                select v_ends || s.ends, v_entries || s.entries, v_notices || s.notices
                into v_ends, v_entries, v_notices
                from holdfast._skip_steps(
                    p_now, v_round.unmet, 'condition_unmet', v_round.errors) as s;
            end if;
        end if;
        if cardinality(v_new.singles) > 0 or cardinality(v_new.done) > 0 then
            v_round := holdfast._end_overfull(
                p_now, v_new.singles, v_new.done, v_ends, v_entries, v_failures, v_notices);
            v_singles := v_singles || v_round.singles;
            v_done := v_done || v_round.done;
            v_ends := v_round.ends;
            v_entries := v_round.entries;
            v_failures := v_round.failures;
            v_notices := v_round.notices;
        end if;
        v_ready := '{}';
        exit when cardinality(v_ends) = 0;
    end loop;

    if cardinality(v_failures) > 0 then
        v_singles := array(select s from unnest(v_singles) as s
            where not exists (select from unnest(v_failures) as f where f.run_id = s.run_id));
        v_maps := array(select m from unnest(v_maps) as m
            where not exists (select from unnest(v_failures) as f where f.run_id = m.run_id));
        v_done := array(select d from unnest(v_done) as d
            where not exists (select from unnest(v_failures) as f where f.run_id = d.run_id));
    end if;
    if cardinality(v_singles) > 0 then
        v_begun := holdfast._begin_singles(p_now, v_singles, p_taker);
        v_notices := v_notices || v_begun.notices;
        handed := v_begun.handed;
        v_children := v_begun.children;
    end if;
    if cardinality(v_maps) > 0 then
        p_taker.room := p_taker.room - coalesce(cardinality(handed), 0);
        v_begun := holdfast._begin_maps(p_now, v_maps, p_taker);
        v_notices := v_notices || v_begun.notices;
        handed := handed || v_begun.handed;
        v_entries := v_entries || v_begun.entries;
        v_children := v_children || v_begun.children;
    end if;
    notices := v_notices;
    if cardinality(v_entries) > 0 or cardinality(v_done) > 0 or cardinality(v_failures) > 0 then
        notices := notices || holdfast._end_flows(p_now, v_done, v_entries, v_failures);
    end if;
    if cardinality(v_children) > 0 then  -- last: one may end at once, which advances its run
        notices := notices || holdfast._start_child_steps(p_now, v_children);
    end if;
end $$;

-- Count what ends of steps mean for the steps that depend on them. `ready` are those without an
-- open dependency that are not skipped. A step that was skipped because of one dependency ends for
-- those that depend on it only when all its dependencies have ended, and so does one whose output a
-- fork was given: these are `passed`. So '' is ready when every step has ended, although it depends
-- on the leaves alone. Steps with another rule than none_failed are not skipped because of others.
-- Locks: states of steps. Called by _advance_flows.
create or replace function holdfast._count_ends(
    p_ends holdfast._step_end[], out ready holdfast._ready_step[], out passed holdfast._step_end[]
)
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    with dependents as materialized (
        select c.*, s.deps_count, s.step_type,
            c.cascades and c.step_slug <> '' and s.trigger_rule = 'none_failed' as is_skipped,
            s.required_input_pattern is not null or s.forbidden_input_pattern is not null
                or s.trigger_rule = 'one_failed' as is_conditional
        from (
            select e.run_id, e.handler, d.step_slug, count(*)::int as ends,
                bool_or(e.outcome in ('cascaded', 'failed')) as cascades
            from unnest(p_ends) as e
            cross join lateral (
                select d.step_slug from holdfast.deps d
                where d.handler = e.handler and d.dep_slug = e.step_slug offset 0
            ) as d
            group by e.run_id, e.handler, d.step_slug
        ) as c
        cross join lateral (
            select s.deps_count, s.step_type, s.required_input_pattern, s.forbidden_input_pattern,
                s.trigger_rule
            from holdfast.steps s
            where s.handler = c.handler and s.step_slug = c.step_slug limit 1
        ) as s
    ), counted as (
        insert into holdfast.step_states as s (run_id, step_slug, deps_done)
        select c.run_id, c.step_slug, c.ends from dependents c where c.deps_count > 1
        order by c.run_id, c.step_slug
        on conflict (run_id, step_slug) do update set deps_done = s.deps_done + excluded.deps_done
        returning s.run_id, s.step_slug, s.deps_done, s.status
    ), through as materialized (
        select c.run_id, c.handler, c.step_slug, c.step_type, c.is_conditional, case
            when t.status = 'completed' then 'completed' when c.is_skipped then 'cascaded' end
            as passes
        from dependents c
        left join lateral (
            select t.status from holdfast.step_states t
            where t.run_id = c.run_id and t.step_slug = c.step_slug limit 1
        ) as t on true
        where c.deps_count = 1
        union all
        select c.run_id, c.handler, c.step_slug, c.step_type, c.is_conditional,
            case k.status when 'completed' then 'completed' when 'skipped' then 'cascaded' end
        from counted k
        join dependents c on c.run_id = k.run_id and c.step_slug = k.step_slug
        where c.deps_count > 1 and k.deps_done = c.deps_count
    )
    select coalesce(array_agg((t.run_id, t.handler, t.step_slug, t.step_type,
            t.is_conditional)::holdfast._ready_step) filter (where t.passes is null), '{}'),
        coalesce(array_agg((t.run_id, t.handler, t.step_slug, t.passes)::holdfast._step_end)
            filter (where t.passes is not null), '{}')
    into ready, passed
    from through t;
end $$;

-- Record the steps because of which runs fail; p_wrong are their entries of the log. Returns the
-- entries with them, without those that say that such a step was completed, and the failures.
-- Locks: states of steps. Called by _advance_flows, _end_large_maps, _end_overfull and
-- _fail_attempts.
create or replace function holdfast._fail_steps(
    p_now timestamptz, p_wrong holdfast._flow_entry[], p_entries holdfast._flow_entry[],
    out entries holdfast._flow_entry[], out failures holdfast._flow_failure[]
)
language plpgsql
as $$
begin
    insert into holdfast.step_states (run_id, step_slug, status, error, ended_at)
    select w.run_id, w.key, 'failed', w.details -> 'error', p_now
    from unnest(p_wrong) as w
    order by w.run_id, w.key
    on conflict (run_id, step_slug) do update
    set status = 'failed', output = null, error = excluded.error, ended_at = excluded.ended_at;
    entries := array(
        select (e.run_id, e.event_type, e.key, e.details)::holdfast._flow_entry
        from unnest(p_entries) with ordinality as e (run_id, event_type, key, details, place)
        where e.event_type <> 'FlowStepCompleted' or not exists (
            select from unnest(p_wrong) as w where w.run_id = e.run_id and w.key = e.key)
        order by e.place) || p_wrong;
    failures := array(
        select (w.run_id, w.details -> 'error')::holdfast._flow_failure from unnest(p_wrong) as w);
end $$;

-- Complete maps without elements. Returns their ends. Locks: states of steps. Called by
-- _advance_flows.
create or replace function holdfast._complete_empty(
    p_now timestamptz, p_maps holdfast._flow_step[]
) returns holdfast._step_end[]
language plpgsql
as $$
begin
    insert into holdfast.step_states (run_id, step_slug, status, deps_done, initial_tasks,
        remaining_tasks, output, started_at, ended_at)
    select m.run_id, m.step_slug, 'completed', 1, 0, 0, '[]', p_now, p_now
    from unnest(p_maps) as m
    order by m.run_id, m.step_slug;
    return array(
        select (m.run_id, m.handler, m.step_slug, 'completed')::holdfast._step_end
        from unnest(p_maps) as m);
end $$;

-- Lock the tasks of steps of runs, of all their steps if p_steps is null, by (run_id, key).
-- Elements of maps are completed without the turn, first tasks and then states: who ends a step
-- from above takes them in the same order. Called by all that skip steps or fail runs.
create or replace function holdfast._lock_step_tasks(p_runs uuid[], p_steps text[]) returns void
language plpgsql
as $$
begin
    perform from holdfast.tasks t
    where t.run_id = any (p_runs) and t.kind in ('step', 'child')
        and (p_steps is null or split_part(t.key, ':', 1) in (select unnest(p_steps)))
    order by t.run_id, t.key for update;
end $$;

-- Write the entries of logs, then end the runs that are done, or fail, or, where a failure has no
-- error, are cancelled. Returns (topic, payload) notices.
-- Locks: expects the turn rows locked; events and runs; as _count_ended. Called by
-- _advance_flows.
create or replace function holdfast._end_flows(
    p_now timestamptz, p_done holdfast._flow_step[], p_entries holdfast._flow_entry[],
    p_failures holdfast._flow_failure[]
) returns text[]
language plpgsql
as $$
declare
    v_done uuid[] := array(select d.run_id from unnest(p_done) as d);
    v_children uuid[];
    v_notices text[];
begin
    perform holdfast._append_entries(p_now, p_entries || array(
        select (d.run_id, 'WorkflowCompleted', null, null)::holdfast._flow_entry
        from unnest(p_done) as d));
    if cardinality(v_done) > 0 then
        select e.notices, e.children into v_notices, v_children
        from holdfast._end_runs(p_now, v_done,
            array_fill('completed'::text, array[cardinality(v_done)]),
            holdfast._step_inputs(p_done)::json[]) as e;
        perform holdfast._count_ended(p_now, v_done, 'completed');
        perform holdfast._keep_ends(p_now, v_done);
        if v_children is not null then
            v_notices := v_notices || holdfast._tell_parents(p_now, v_children);
        end if;
    end if;
    if cardinality(p_failures) > 0 then
        perform holdfast._lock_step_tasks(
            array(select f.run_id from unnest(p_failures) as f), null);
        select v_notices || e.notices into v_notices
        from holdfast._end_each(p_now,
            array(select f.run_id from unnest(p_failures) as f where f.error is not null),
            'failed', 'WorkflowFailed', null,
            array(select f.error from unnest(p_failures) as f where f.error is not null)) as e;
        select v_notices || e.notices into v_notices
        from holdfast._end_each(p_now,
            array(select f.run_id from unnest(p_failures) as f where f.error is null),
            'cancelled', 'WorkflowCanceled') as e;
    end if;
    return v_notices;
end $$;

-- Append entries to logs, in the order given. With the turn rows locked nobody else appends: a
-- duplicate key here is a fault that must be seen. Locks: events. Called by _end_flows.
create or replace function holdfast._append_entries(
    p_now timestamptz, p_entries holdfast._flow_entry[]
) returns void
language plpgsql
as $$
begin
    insert into holdfast.events (run_id, idx, event_type, key, details, at)
    select u.run_id, u.number + max(u.last) over (partition by u.run_id), u.event_type, u.key,
        u.details, p_now
    from (
        select n.*, l.idx as last
        from (
            select e.*, row_number() over (partition by e.run_id order by e.place) as number
            from unnest(p_entries) with ordinality
                as e (run_id, event_type, key, details, place)
        ) as n
        left join lateral (
            select e.idx from holdfast.events e
            where n.number = 1 and e.run_id = n.run_id order by e.idx desc limit 1
        ) as l on true
    ) as u
    order by u.run_id, u.number;
end $$;
