-- Pauses: of runs, and of whole queues and workflows.

-- Pause runs: append WorkflowPaused. Neither their turns nor their activities are claimed until
-- they are resumed. Workers that hold turns are notified; they finish the steps that they have
-- begun, and give the leases back. A run that is paused already is a duplicate. Refuses nulls among
-- the ids (22004) and a reason or a p_by (who asks) that is too long (22023).
-- Locks: turn rows, then other task rows, then events, by run_id. Called by clients.
create or replace function holdfast.pause_runs(
    p_run_ids uuid[], p_reason text default null, p_by text default null,
    out outcomes text[], out notices text[]
)
language plpgsql
as $$
declare
    v record;
begin
    perform holdfast._check_change(p_run_ids, p_reason, p_by);
    v := holdfast._set_paused(
        p_run_ids, true, 'WorkflowPaused', holdfast._reason(p_reason, p_by));
    notices := holdfast._holder_notices(v.changed);
    outcomes := holdfast._outcomes(p_run_ids, v.locked, v.changed);
end $$;

-- Resume paused runs, and stuck ones that are to be tried again later: append WorkflowResumed, and
-- wake them. The pauses between the tries of a stuck run begin again with the shortest. A run whose
-- start time has not come still waits for it. A run that is neither is a duplicate. Runs that are
-- steps of flows, and were not started because of the pause, are started.
-- Locks: turn rows, then other task rows, then events, by run_id; of flows with such steps, as
-- end_step_tasks. Called by clients.
create or replace function holdfast.resume_runs(
    p_run_ids uuid[], p_by text default null, out outcomes text[], out notices text[]
)
language plpgsql
as $$
declare
    v record;
    v_begun uuid[];
begin
    perform holdfast._check_change(p_run_ids, null, p_by);
    if cardinality(holdfast._paused_steps(p_run_ids)) > 0 then  -- they may end at once
        perform holdfast._lock_family(p_run_ids || holdfast._parents(p_run_ids), '{}');
    end if;
    v := holdfast._set_paused(p_run_ids, false, 'WorkflowResumed',
        case when p_by is not null then json_build_object('by', p_by) end);
    select array_agg(t.run_id) filter (where t.key = '' and t.lease_no > 0),
        array_agg(distinct array['work', t.queue])
            filter (where t.kind <> 'approval' and (t.key <> '' or t.lease_no = 0))
    into v_begun, notices
    from unnest(v.changed) as u (run_id)
    cross join lateral (select * from holdfast.tasks t where t.run_id = u.run_id offset 0) as t;
    notices := notices || holdfast._wake_each(holdfast.now(), v_begun)
        || holdfast._start_paused_steps(holdfast.now(), v.changed);
    outcomes := holdfast._outcomes(p_run_ids, v.locked, v.changed);
end $$;

-- Pause runs that are not paused, or resume those that are, or are stuck, and append this event.
-- Returns the runs that were locked, and those that were changed.
-- Locks: turn rows, then other task rows, then events, by run_id. Called by pause_runs and
-- resume_runs.
create or replace function holdfast._set_paused(
    p_run_ids uuid[], p_paused boolean, p_event_type text, p_details json,
    out locked uuid[], out changed uuid[]
)
language plpgsql
as $$
begin
    locked := holdfast._lock_turns(p_run_ids);
    with paused as (
        update holdfast.tasks t
        set paused = p_paused, stuck_tries = case when p_paused then t.stuck_tries else 0 end
        -- By run: the rows of activities are not locked, and change their places.
        where t.run_id = any (locked) and (t.paused <> p_paused
            or not p_paused and t.key = '' and t.stuck is not null and t.worker is null
                and t.visible_at > holdfast.now())
        returning t.run_id, t.key
    )
    select coalesce(array_agg(p.run_id) filter (where p.key = ''), '{}') into changed
    from paused p;
    changed := holdfast._append_each(holdfast.now(), changed, p_event_type,
        array_fill(p_details, array[cardinality(changed)]));
end $$;

-- Pause or resume a queue or a workflow: p_scope is 'queue' or 'workflow'. No task of it is claimed
-- while it is paused. `changed` is false if it was so before; `queues` are those that may have work
-- again. Runs that are steps of a flow, and were not started because of its pause, are started.
-- Refuses other scopes and values that are not allowed (22004, 22023).
-- Locks: the pause; of a flow with such steps, as end_step_tasks. Called by clients.
create or replace function holdfast.set_pause(
    p_scope text, p_name text, p_paused boolean, p_reason text default null,
    out changed boolean, out queues text[]
)
language plpgsql
as $$
begin
    perform holdfast._check_given('a scope', p_scope is not null);
    if p_scope not in ('queue', 'workflow') then
        raise invalid_parameter_value using message = format(
            'a scope is queue or workflow, not %s', quote_literal(left(p_scope, 200)));
    end if;
    perform holdfast._check_name('a ' || p_scope, p_name);
    perform holdfast._check_given('paused', p_paused is not null);
    perform holdfast._check_text('a reason', p_reason);
    if p_paused then
        insert into holdfast.pauses (scope, name, reason, paused_at)
        values (p_scope, p_name, p_reason, holdfast.now())
        on conflict do nothing;
        changed := found;
        return;
    end if;
    delete from holdfast.pauses p where p.scope = p_scope and p.name = p_name;
    changed := found;
    if changed and p_scope = 'queue' then
        queues := array[p_name];
    elsif changed then
        select array_agg(distinct q.queue) into queues
        from holdfast.workers w
        cross join lateral unnest(w.queues) as q (queue)
        where exists (
            select from unnest(w.handlers) as h (handler)
            where regexp_replace(h.handler, '@[^@]*$', '') = p_name);
        queues := array(
            select distinct q.queue from unnest(queues || holdfast._resume_steps(p_name))
                as q (queue)
            order by q.queue);
    end if;
end $$;

-- List the queues and workflows that are paused. Called by clients.
create or replace function holdfast.list_pauses()
returns table (scope text, name text, reason text, paused_at bigint)
language sql stable
as $$
    select p.scope, p.name, p.reason, holdfast._micros(p.paused_at)
    from holdfast.pauses p order by p.scope, p.name
$$;
