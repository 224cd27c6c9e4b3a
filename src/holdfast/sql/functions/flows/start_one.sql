-- The start of one run of a flow by values that most starts have.

-- Start a run of a shape, slug@version, that has had a run and whose root steps are single ones,
-- without a condition, a delay or a run of their own; the values are those of start_flows. Returns
-- the (topic, payload) notices; null if the shape is different, or if the run exists already: then
-- nothing is written.
-- Locks: as _lock_starts; the id that it inserts. Called by start_flows.
create or replace function holdfast._start_plain_flow(
    p_now timestamptz, p_run_id uuid, p_shape text, p_input json, p_key text, p_queue text,
    p_priority int, p_retention float8, p_waiter text
) returns text[]
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_flow record;
    v_timeout float8;
begin
    perform pg_advisory_xact_lock_shared(
        hashtext('holdfast.flow'), hashtext(split_part(p_shape, '@', 1)));
    select f.flow_slug, f.version, coalesce(p_queue, f.queue) as queue,
        greatest(p_now, f.created_at) as created_at, r.* into v_flow
    from holdfast.flows f
    cross join lateral (
        select array_agg(s.step_slug order by s.step_index) as slugs,
            array_agg(coalesce(s.queue, p_queue, f.queue) order by s.step_index) as queues,
            bool_and(s.step_type = 'single' and s.runs is null
                and coalesce(s.opt_start_delay, 0) = 0
                and num_nonnulls(s.required_input_pattern, s.forbidden_input_pattern) = 0)
            as are_plain
        from holdfast.steps s where s.handler = p_shape and s.deps_count = 0
    ) as r
    where f.handler = p_shape and f.is_sealed;
    if v_flow.are_plain is not true then
        return null;
    end if;

    if p_priority is null or p_retention is null then
        select d.priority, d.timeout, d.retention into p_priority, v_timeout, p_retention
        from holdfast._with_declared(
            v_flow.flow_slug, v_flow.queue, p_priority, null, p_retention) as d;
    end if;
    insert into holdfast.runs (run_id, kind, name, version, key, queue, priority, input, retention,
        deadline_at, created_at)
    values (p_run_id, 'flow', v_flow.flow_slug, v_flow.version, p_key, v_flow.queue,
        p_priority, coalesce(p_input, 'null'), p_retention * interval '1 second',
        p_now + v_timeout * interval '1 second', v_flow.created_at)
    on conflict do nothing;
    if not found then
        return null;
    end if;
    insert into holdfast.events (run_id, idx, event_type, at)
    values (p_run_id, 0, 'WorkflowStarted', p_now);
    insert into holdfast.tasks (run_id, key, kind, queue, handler, priority, visible_at, started_at)
    select p_run_id, t.key, t.kind, t.queue, p_shape, p_priority, t.visible_at,
        t.started_at
    from (
        select '', 'flow', v_flow.queue, 'infinity'::timestamptz, p_now
        union all
        select u.slug, 'step', u.queue, p_now, null
        from unnest(v_flow.slugs, v_flow.queues) as u (slug, queue)
    ) as t (key, kind, queue, visible_at, started_at);
    if p_waiter is not null then  -- without a lock: nobody else sees the run yet
        insert into holdfast.waiters (run_id, topic) values (p_run_id, p_waiter);
    end if;
    return array(
        select distinct array['starts', u.queue] from unnest(v_flow.queues) as u (queue));
end $$;
