-- Steps that are skipped, and what that means for the steps after them.

-- Skip steps, and for those with the outcome 'cascaded' all that depends on them, up to steps whose
-- outputs a fork was given. Tasks of theirs are deleted; workers that hold one are told. `ends` are
-- the steps that ended by it, `entries` speak of all that were skipped. p_errors are parallel to
-- the steps.
-- Locks: tasks of steps by (run_id, key), then states. Called by _advance_flows and _fail_attempts.
create or replace function holdfast._skip_steps(
    p_now timestamptz, p_steps holdfast._step_end[], p_reason text, p_errors json[] default null,
    out ends holdfast._step_end[], out entries holdfast._flow_entry[], out notices text[]
)
language plpgsql
as $$
declare
    v_children holdfast._flow_step[];
begin
    perform holdfast._lock_step_tasks(
        array(select distinct s.run_id from unnest(p_steps) as s),
        array(select s.step_slug from unnest(p_steps) as s));
    with recursive down as (
        select s.run_id, s.handler, s.step_slug, s.outcome = 'cascaded' as cascades,
            true as is_first
        from unnest(p_steps) as s
        union
        select w.run_id, w.handler, d.step_slug, true, false
        from down w
        cross join lateral (
            select d.step_slug from holdfast.deps d
            where d.handler = w.handler and d.dep_slug = w.step_slug offset 0
        ) as d
        where w.cascades and d.step_slug <> '' and (
            select t.status from holdfast.step_states t
            where t.run_id = w.run_id and t.step_slug = d.step_slug
        ) is distinct from 'completed'
    ), chosen as materialized (
        select w.run_id, w.handler, w.step_slug, bool_or(w.cascades) as cascades,
            bool_or(w.is_first) as is_first
        from down w group by w.run_id, w.handler, w.step_slug
    ), skipped as (
        insert into holdfast.step_states as s (
            run_id, step_slug, status, skip_reason, error, ended_at)
        select c.run_id, c.step_slug, 'skipped',
            case when c.is_first then p_reason else 'dependency_skipped' end, e.error, p_now
        from chosen c
        left join (
            select s.run_id, s.step_slug, p_errors[s.place] as error
            from unnest(p_steps) with ordinality as s (run_id, handler, step_slug, outcome, place)
        ) as e on e.run_id = c.run_id and e.step_slug = c.step_slug
        order by c.run_id, c.step_slug
        on conflict (run_id, step_slug) do update
        set status = 'skipped', skip_reason = excluded.skip_reason, error = excluded.error,
            remaining_tasks = null, ended_at = p_now
        where s.status in ('created', 'started')
        returning s.run_id, s.step_slug, s.skip_reason
    )
    select coalesce(array_agg((c.run_id, c.handler, c.step_slug,
            case when c.cascades then 'cascaded' else 'skipped' end)::holdfast._step_end)
            filter (where c.is_first), '{}'),
        coalesce(array_agg((s.run_id, 'FlowStepSkipped', s.step_slug,
            json_build_object('reason', s.skip_reason))::holdfast._flow_entry
            order by s.run_id, c.is_first desc, s.step_slug), '{}')
    into ends, entries
    from skipped s join chosen c on c.run_id = s.run_id and c.step_slug = s.step_slug;

    with gone as (
        delete from holdfast.tasks t
        using (select distinct e.run_id from unnest(entries) as e) as r
        where t.run_id = r.run_id and t.kind in ('step', 'child') and exists (
            select from unnest(entries) as e
            where e.run_id = t.run_id and e.key = split_part(t.key, ':', 1))
        returning t.worker, t.run_id, t.handler, t.key, t.kind
    )
    select array_agg(array['worker/' || g.worker, g.run_id || ' ' || g.key])
            filter (where g.worker is not null),
        array_agg((g.run_id, g.handler, g.key)::holdfast._flow_step)
            filter (where g.kind = 'child')
    into notices, v_children from gone g;
    if v_children is not null then
        notices := notices || holdfast._cancel_child_steps(p_now, v_children);
    end if;
end $$;
