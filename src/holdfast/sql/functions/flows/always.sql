-- Steps that always run at the end of a run: also of one that is cancelled.

-- Return true if a run of a flow has steps that always run at the end: none of one whose delayed
-- start has not come. Locks nothing. Called by _cancel.
create or replace function holdfast._has_last_steps(
    p_now timestamptz, p_run_id uuid, p_handler text
)
returns boolean
language plpgsql stable
as $$
begin
    return exists (
        select from holdfast.steps s
        where s.handler = p_handler and s.trigger_rule = 'always')
        and not exists (
            select from holdfast.runs r where r.run_id = p_run_id and r.due_at > p_now);
end $$;

-- Stop all steps of runs but those that always run at the end, and begin these, unless they have
-- begun. Returns (topic, payload) notices.
-- Locks: expects the turn rows of the runs and of their descendants locked; tasks of steps by
-- (run_id, key), then as _advance_flows. Called by _cancel.
create or replace function holdfast._cancel_flows(p_now timestamptz, p_run_ids uuid[])
returns text[]
language plpgsql
as $$
declare
    v_notices text[];
    v_steps holdfast._flow_step[];
    v_open uuid[];
    v_ready holdfast._ready_step[];
begin
    perform holdfast._lock_step_tasks(p_run_ids, null);
    select array_agg((u.run_id, u.handler, s.step_slug, s.step_type, false)::holdfast._ready_step
            order by u.run_id, s.step_index) filter (where s.trigger_rule = 'always'),
        array_agg((u.run_id, u.handler, s.step_slug)::holdfast._flow_step)
            filter (where s.trigger_rule <> 'always'),
        array_agg(distinct u.run_id)
    into v_ready, v_steps, v_open
    from (
        select t.run_id, t.handler
        from unnest(p_run_ids) as r (run_id)
        cross join lateral (
            select t.run_id, t.handler from holdfast.tasks t
            where t.run_id = r.run_id and t.key = '' limit 1
        ) as t
    ) as u
    cross join lateral (
        select s.* from holdfast.steps s where s.handler = u.handler and s.step_slug <> '' offset 0
    ) as s
    where not exists (
        select from holdfast.steps l
        where l.handler = u.handler and l.trigger_rule = 'always' and (
            exists (
                select from holdfast.tasks t where t.run_id = u.run_id and t.key = l.step_slug)
            or exists (
                select from holdfast.step_states t
                where t.run_id = u.run_id and t.step_slug = l.step_slug
                    and t.status <> 'created')));
    if v_open is null then
        return null;
    end if;
    perform holdfast._keep_started(v_open);
    v_notices := holdfast._delete_step_tasks(p_now, v_steps, 'its flow was cancelled');
    insert into holdfast.step_states as t (run_id, step_slug, deps_done)
    select c.run_id, c.step_slug, c.done
    from (
        select r.run_id, s.step_slug, s.deps_count - case when s.step_slug = '' then (
            select count(*)::int from holdfast.steps l
            where l.handler = r.handler and l.trigger_rule = 'always') else 0 end as done
        from (select distinct r.run_id, r.handler from unnest(v_ready) as r) as r
        cross join lateral (
            select s.step_slug, s.deps_count from holdfast.steps s
            where s.handler = r.handler and (s.step_slug = '' or s.trigger_rule = 'always')
                and s.deps_count > 1
            offset 0
        ) as s
    ) as c
    order by c.run_id, c.step_slug
    on conflict (run_id, step_slug) do update set deps_done = excluded.deps_done;
    return holdfast._as_work(v_notices || a.notices)
    from holdfast._advance_flows(p_now, '{}', v_ready, '{}', '{}', null) as a;
end $$;
