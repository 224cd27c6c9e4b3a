-- Steps that are skipped, and what that means for the steps after them.

-- Skip steps, and for those with the outcome 'cascaded' all that depends on them, up to steps whose
-- outputs a fork was given, and to those with another trigger rule than none_failed. Steps with the
-- outcome 'failed' have failed, and what depends on them is skipped in the same way. Tasks of
-- theirs are deleted; workers that hold one are told. `ends` are the steps that ended by it,
-- `entries` speak of all that were skipped. p_errors are parallel to the steps.
-- Locks: tasks of steps by (run_id, key), then states. Called by _advance_flows,
-- _end_large_maps, _end_overfull and _fail_attempts.
create or replace function holdfast._skip_steps(
    p_now timestamptz, p_steps holdfast._step_end[], p_reason text, p_errors json[] default null,
    out ends holdfast._step_end[], out entries holdfast._flow_entry[], out notices text[]
)
language plpgsql
set enable_hashjoin = on
as $$
begin
    perform holdfast._lock_step_tasks(
        array(select distinct s.run_id from unnest(p_steps) as s),
        array(select s.step_slug from unnest(p_steps) as s));
    with recursive down as (  -- `place` is that of the step that failed, `own` of the step itself
        select s.run_id, s.handler, s.step_slug, s.outcome <> 'skipped' as cascades,
            case s.outcome when 'failed' then s.place end as place, s.place as own
        from unnest(p_steps) with ordinality as s (run_id, handler, step_slug, outcome, place)
        union
        select w.run_id, w.handler, d.step_slug, true, w.place, null
        from down w
        cross join lateral (
            select d.step_slug from holdfast.deps d
            where d.handler = w.handler and d.dep_slug = w.step_slug offset 0
        ) as d
        cross join lateral (
            select s.trigger_rule from holdfast.steps s
            where s.handler = w.handler and s.step_slug = d.step_slug limit 1
        ) as s
        where w.cascades and d.step_slug <> '' and s.trigger_rule = 'none_failed' and (
            select t.status from holdfast.step_states t
            where t.run_id = w.run_id and t.step_slug = d.step_slug
        ) is distinct from 'completed'
    ), chosen as materialized (
        select w.run_id, w.handler, w.step_slug, bool_or(w.cascades) as cascades,
            min(w.own) as own, min(w.place) as place, (
                select t.status from holdfast.step_states t
                where t.run_id = w.run_id and t.step_slug = w.step_slug
            ) is not distinct from 'skipped' as was_skipped
        from down w group by w.run_id, w.handler, w.step_slug
    ), skipped as (
        insert into holdfast.step_states as s (
            run_id, step_slug, status, skip_reason, error, ended_at)
        select c.run_id, c.step_slug,
            case when c.own is not null and c.place is not null then 'failed' else 'skipped' end,
            case when c.own is null then case when c.place is null
                    then 'dependency_skipped' else 'dependency_failed' end
                when c.place is null then p_reason end,
            coalesce(p_errors[c.own], p_errors[c.place]), p_now
        from chosen c
        order by c.run_id, c.step_slug
        on conflict (run_id, step_slug) do update
        set status = excluded.status, skip_reason = excluded.skip_reason, error = excluded.error,
            remaining_tasks = null, ended_at = p_now
        where s.status in ('created', 'started')  -- a failure says more than a skip
            or s.skip_reason = 'dependency_skipped' and excluded.skip_reason = 'dependency_failed'
        returning s.run_id, s.step_slug, s.status, s.skip_reason, s.error
    )
    select coalesce(array_agg((c.run_id, c.handler, c.step_slug, case
                when s.status = 'failed' then 'failed' when c.cascades then 'cascaded'
                else 'skipped' end)::holdfast._step_end) filter (where c.own is not null), '{}'),
        coalesce(array_agg((s.run_id,
            case s.status when 'failed' then 'FlowStepFailed' else 'FlowStepSkipped' end,
            s.step_slug, case s.status when 'failed' then json_build_object('error', s.error)
                else json_build_object('reason', s.skip_reason) end)::holdfast._flow_entry
            order by s.run_id, c.own is null, s.step_slug) filter (where not c.was_skipped), '{}')
    into ends, entries
    from skipped s join chosen c on c.run_id = s.run_id and c.step_slug = s.step_slug;
    notices := holdfast._delete_step_tasks(
        p_now, array(select distinct (e.run_id, '', e.key)::holdfast._flow_step
            from unnest(entries) as e), 'its step was skipped');
end $$;

-- Delete the tasks of steps that end before their time, tell the workers that hold one, and ask the
-- runs to stop that stand for some. Returns (topic, payload) notices.
-- Locks: expects the tasks locked; as _cancel_child_steps. Called by _skip_steps and _cancel_flows.
create or replace function holdfast._delete_step_tasks(
    p_now timestamptz, p_steps holdfast._flow_step[], p_reason text
) returns text[]
language plpgsql
set enable_hashjoin = on
as $$
declare
    v_notices text[];
    v_children holdfast._flow_step[];
begin
    with gone as (
        delete from holdfast.tasks t
        where t.ctid = any (array(
            select k.tid
            from (select distinct s.run_id from unnest(p_steps) as s) as r
            cross join lateral (
                select k.ctid as tid, k.run_id, split_part(k.key, ':', 1) as step_slug
                from holdfast.tasks k
                where k.run_id = r.run_id and k.kind in ('step', 'child') offset 0
            ) as k
            join unnest(p_steps) as s on s.run_id = k.run_id and s.step_slug = k.step_slug))
        returning t.worker, t.run_id, t.handler, t.key, t.kind
    )
    select array_agg(array['worker/' || g.worker, g.run_id || ' ' || g.key])
            filter (where g.worker is not null),
        array_agg((g.run_id, g.handler, g.key)::holdfast._flow_step)
            filter (where g.kind = 'child')
    into v_notices, v_children from gone g;
    if v_children is not null then
        v_notices := v_notices || holdfast._cancel_child_steps(p_now, v_children, p_reason);
    end if;
    return v_notices;
end $$;
