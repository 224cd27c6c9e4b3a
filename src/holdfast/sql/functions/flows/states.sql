-- How far runs of flows are.

-- Return the steps of runs in the order in which they were added, as the shape had them when the
-- run was created. One of which nothing is known yet is 'created'; a single step whose task has
-- been claimed is 'started'. One that is a run which begins later is 'created' too, and its
-- started_at is that moment. One that failed has the attempts and the worker that its error names.
-- Without p_outputs, outputs are null. Called by clients.
create or replace function holdfast.flow_steps(p_run_ids uuid[], p_outputs boolean default true)
returns table (
    run_id uuid, step_slug text, step_type text, deps text[], status text, initial_tasks int,
    remaining_tasks int, output json, error json, skip_reason text, attempts int, worker text,
    started_at bigint, ended_at bigint, delay_seconds int, trigger_rule text, failed_tasks int
)
language plpgsql stable
as $$
begin
    return query
    select r.run_id, s.step_slug, s.step_type, s.deps,
        case when coalesce(t.status, 'created') = 'created' and k.started_at <= holdfast.now()
            then 'started' else coalesce(t.status, 'created') end,
        t.initial_tasks, t.remaining_tasks, case when t.status = 'completed' and p_outputs
            then holdfast._step_output(r.run_id, s.step_slug)::json end,
        t.error, t.skip_reason, coalesce(t.attempts, k.attempts, (f.error ->> 'attempts')::int),
        coalesce(t.worker, k.worker, f.error ->> 'worker'),
        holdfast._micros(coalesce(t.started_at, k.started_at)), holdfast._micros(t.ended_at),
        coalesce(s.opt_start_delay, 0), s.trigger_rule, coalesce(t.failed_tasks, 0)
    from unnest(p_run_ids) as u (run_id)
    cross join lateral (
        select r.run_id, r.name || '@' || r.version as handler, r.created_at, r.status
        from holdfast.runs r
        where r.run_id = u.run_id and r.kind = 'flow' limit 1
    ) as r
    left join lateral (
        select x.shape from holdfast.replaced_shapes x
        where r.status <> 'running' and x.handler = r.handler and x.replaced_at > r.created_at
        order by x.replaced_at limit 1
    ) as x on true
    cross join lateral (
        select s.step_slug, s.step_type, s.step_index, s.opt_start_delay, s.trigger_rule,
            d.deps
        from holdfast.steps s
        cross join lateral (
            select array_agg(d.dep_slug order by d.dep_slug) as deps
            from (  -- the order must not choose the index: that of the key has all steps
                select d.dep_slug from holdfast.deps d
                where d.handler = r.handler and d.step_slug = s.step_slug and not d.is_implied
                offset 0
            ) as d
        ) as d
        where x.shape is null and s.handler = r.handler and s.step_slug <> ''
        union all
        select e.step ->> 'slug', e.step ->> 'kind', e.place::int,
            (e.step ->> 'start_delay')::int, coalesce(e.step ->> 'trigger_rule', 'none_failed'),
            array(select jsonb_array_elements_text(e.step -> 'deps'))
        from jsonb_array_elements(x.shape -> 'steps') with ordinality as e (step, place)
        offset 0
    ) as s
    left join lateral (
        select * from holdfast.step_states t
        where t.run_id = r.run_id and t.step_slug = s.step_slug limit 1
    ) as t on true
    left join lateral (
        select * from holdfast.tasks k
        where k.run_id = r.run_id and k.key = s.step_slug limit 1
    ) as k on true
    left join lateral (select t.error where t.error ->> 'step' = s.step_slug) as f on true
    order by r.run_id, s.step_index;
end $$;

-- Write which single steps of runs that end before their time were under way: their tasks are about
-- to be deleted. Called by _end_each and _cancel_flows, with the turn rows locked.
create or replace function holdfast._keep_started(p_run_ids uuid[]) returns void
language plpgsql
as $$
begin
    insert into holdfast.step_states as s (
        run_id, step_slug, status, initial_tasks, remaining_tasks, attempts, worker, started_at)
    select t.run_id, t.key, 'started', 1, 1, t.attempts, t.worker, t.started_at
    from unnest(p_run_ids) as u (run_id)
    cross join lateral (
        select * from holdfast.tasks t where t.run_id = u.run_id and t.key <> '' offset 0
    ) as t
    where t.kind in ('step', 'child') and strpos(t.key, ':') = 0
        and t.started_at <= holdfast.now()
    order by t.run_id, t.key
    on conflict (run_id, step_slug) do update
    set status = 'started', initial_tasks = 1, remaining_tasks = 1, attempts = excluded.attempts,
        worker = excluded.worker, started_at = excluded.started_at
    where s.status = 'created';
end $$;

-- Return the state of a run of a flow that has not ended, from the tasks of its steps: running if a
-- worker has one, else paused, else queued if one is due, else waiting. 100 of its tasks are looked
-- at; if it has more, as a wide map, then also 1,000 of those that workers have of its flow, in
-- each of its queues. Called by get_runs and _matching_runs.
create or replace function holdfast._flow_state(p_run_id uuid, p_paused boolean) returns text
language plpgsql stable
set enable_bitmapscan = off
as $$
declare
    v_seen int;
    v_leased boolean;
    v_due boolean;
begin
    select count(*), bool_or(t.worker is not null), bool_or(
        coalesce(t.limited_at, t.visible_at) <= holdfast.now())
    into v_seen, v_leased, v_due
    from (
        select t.worker, t.visible_at, t.limited_at from holdfast.tasks t
        where t.run_id = p_run_id and t.key <> '' limit 100
    ) as t;
    if v_seen = 100 and not v_leased then
        v_leased := exists (
            select from (
                select r.queue, r.name || '@' || r.version as handler from holdfast.runs r
                where r.run_id = p_run_id
            ) as r
            cross join lateral (
                select r.queue union select s.queue from holdfast.steps s
                where s.handler = r.handler and s.queue is not null
            ) as q
            cross join lateral (
                select t.run_id from holdfast.tasks t
                where t.queue = q.queue and t.handler = r.handler and t.worker is not null
                limit 1000
            ) as t
            where t.run_id = p_run_id);
    end if;
    return case when v_leased then 'running' when p_paused then 'paused' when v_due then 'queued'
        else 'waiting' end;
end $$;

-- Return the tasks of a run's steps that have not ended, those of one step together that are in the
-- same phase, in the order of the steps: 'running' on a worker; 'due'; 'retrying', not before
-- visible_at, after an attempt that failed; 'delayed', not before visible_at; 'waiting', for other
-- elements of their map to end, with visible_at now. Of several tasks
-- visible_at and started_at are the earliest, attempts is the largest; error is that of the newest
-- failed attempt, task_index that of its task, if it is an element of a map; stuck is why a worker
-- could not begin with one. Called by clients.
create or replace function holdfast.open_step_tasks(p_run_id uuid) returns table (
    step_slug text, phase text, queue text, worker text, tasks int, visible_at bigint,
    started_at bigint, attempts int, error json, task_index int, stuck text
)
language plpgsql stable
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    return query
    with open as materialized (
        select split_part(t.key, ':', 1) as step_slug, t.key, t.handler, t.queue, t.worker,
            case when t.limited_at is null and t.visible_at = 'infinity' then v_now
                else coalesce(t.limited_at, t.visible_at) end as visible_at, t.started_at,
            t.attempts, t.heartbeat, t.stuck, case when t.worker is not null then 'running'
                when t.limited_at is null and t.visible_at = 'infinity' then 'waiting'
                when coalesce(t.limited_at, t.visible_at) <= v_now then 'due'
                when t.heartbeat is not null then 'retrying' else 'delayed' end as phase
        from holdfast.tasks t
        where t.run_id = p_run_id and t.kind = 'step'
    )
    select g.step_slug, g.phase, g.queue, g.worker, g.tasks, holdfast._micros(g.visible_at),
        holdfast._micros(g.started_at), g.attempts, g.error, g.task_index, g.stuck
    from (
        select o.handler, o.step_slug, o.phase, o.queue, o.worker, count(*)::int as tasks,
            min(o.visible_at) as visible_at, min(o.started_at) as started_at,
            max(o.attempts) as attempts,
            (array_agg(o.heartbeat -> 'error' order by o.visible_at desc, o.key collate "C")
                filter (where o.heartbeat is not null))[1] as error,
            (array_agg(nullif(split_part(o.key, ':', 2), '')::int
                order by o.visible_at desc, o.key collate "C")
                filter (where o.heartbeat is not null))[1] as task_index,
            max(o.stuck collate "C") as stuck
        from open o
        group by o.handler, o.step_slug, o.phase, o.queue, o.worker
    ) as g
    cross join lateral (
        select s.step_index from holdfast.steps s
        where s.handler = g.handler and s.step_slug = g.step_slug limit 1
    ) as s
    order by s.step_index, g.step_slug, g.phase, g.worker collate "C";
end $$;
