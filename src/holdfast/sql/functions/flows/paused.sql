-- Steps that are runs and became ready while their flow, or its run, was paused.

-- Start the runs that are steps, of those steps that became ready while the flow's run was paused.
-- Returns (topic, payload) notices. Locks: as _start_child_steps. Called by resume_runs and
-- _resume_steps.
create or replace function holdfast._start_paused_steps(p_now timestamptz, p_run_ids uuid[])
returns text[]
language plpgsql
as $$
declare
    v_steps holdfast._flow_step[] := holdfast._paused_steps(p_run_ids);
begin
    if cardinality(v_steps) = 0 then
        return null;
    end if;
    update holdfast.tasks t set started_at = p_now
    from unnest(v_steps) as s
    where t.run_id = s.run_id and t.key = s.step_slug and t.started_at is null
        and not t.paused;
    return holdfast._as_work(holdfast._start_child_steps(p_now, v_steps));
end $$;

-- Return the tasks of these runs whose steps are runs that were not started yet: they became ready
-- while the flow's run was paused, or the flow. Locks nothing. Called by resume_runs,
-- _start_paused_steps and _resume_steps.
create or replace function holdfast._paused_steps(p_run_ids uuid[]) returns holdfast._flow_step[]
language plpgsql stable
as $$
begin
    return array(
        select (t.run_id, t.handler, t.key)::holdfast._flow_step
        from unnest(p_run_ids) as u (run_id)
        cross join lateral (
            select t.run_id, t.handler, t.key, t.kind, t.attempts from holdfast.tasks t
            where t.run_id = u.run_id and t.key <> '' offset 0
        ) as t
        left join lateral (
            select s.next_task from holdfast.step_states s
            where s.run_id = t.run_id and s.step_slug = split_part(t.key, ':', 1) limit 1
        ) as s on true
        where t.kind = 'child'
            and coalesce(nullif(split_part(t.key, ':', 2), '')::int < s.next_task, true)
            and not holdfast._has_run(holdfast._step_run_id(t.run_id, t.key, t.attempts, (
                select r.created_at from holdfast.runs r where r.run_id = u.run_id)))
            and not exists (  -- nor a run as which that one has continued
                select from (
                    select r.parent_key, r.status from holdfast.runs r
                    where r.parent_run_id = t.run_id offset 0
                ) as r
                where r.parent_key = t.key and r.status = 'running')
        order by t.run_id, t.key collate "C");
end $$;

-- Return those of some tasks whose flows are not paused. Of the others the steps have not begun.
-- A resume waits for the transactions that have seen its pause, and then finds their tasks; one
-- that is about to delete the pause counts as done, so nobody waits for it here.
-- Locks: pauses, shared, skipping locked ones; expects the turn rows locked; tasks. Called by
-- _start_child_steps.
create or replace function holdfast._hold_paused(p_tasks holdfast._flow_step[])
returns holdfast._flow_step[]
language plpgsql
as $$
declare
    v_paused text[];
begin
    if not exists (select from holdfast.pauses p where p.scope = 'workflow') then
        return p_tasks;
    end if;
    v_paused := array(
        select p.name from holdfast.pauses p
        where p.scope = 'workflow' and p.name = any (array(
            select distinct regexp_replace(u.handler, '@[0-9]+$', '') from unnest(p_tasks) as u))
        for share skip locked);
    update holdfast.tasks t set started_at = null
    from unnest(p_tasks) as u
    where t.run_id = u.run_id and t.key = u.step_slug and t.kind = 'child' and t.attempts = 1
        and strpos(t.key, ':') = 0 and regexp_replace(u.handler, '@[0-9]+$', '') = any (v_paused);
    return array(
        select u from unnest(p_tasks) as u
        where regexp_replace(u.handler, '@[0-9]+$', '') <> all (v_paused));
end $$;

-- Start the runs that are steps, of those steps that became ready while a flow was paused. Returns
-- the queues that have work by it. Locks: expects the pause deleted; turn rows of families, then as
-- _start_child_steps. Called by set_pause.
create or replace function holdfast._resume_steps(p_flow_slug text) returns text[]
language plpgsql
as $$
declare
    v_running constant text := 'running';
    v_runs uuid[];
    v_notices text[];
begin
    if not exists (
        select from holdfast.steps s
        where s.runs is not null and split_part(s.handler, '@', 1) = p_flow_slug)
    then
        return null;
    end if;
    v_runs := array(
        select distinct s.run_id
        from unnest(holdfast._paused_steps(array(
            select r.run_id from holdfast.runs r
            where r.name = p_flow_slug and r.status = v_running and r.kind = 'flow'))) as s);
    if cardinality(v_runs) > 0 then  -- they may end at once
        perform holdfast._lock_family(v_runs || holdfast._parents(v_runs), '{}');
        v_notices := holdfast._start_paused_steps(holdfast.now(), v_runs);
    end if;
    return array(
        select v_notices[n.place][2] from generate_subscripts(v_notices, 1) as n (place)
        where v_notices[n.place][1] = 'work');
end $$;
