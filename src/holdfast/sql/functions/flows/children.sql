-- Runs of flows as children, and runs as the steps of flows.

-- Return true if there is a shape slug@version. Locks nothing. Called by _start_children.
create or replace function holdfast._has_shape(p_handler text) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    return exists (select from holdfast.flows f where f.handler = p_handler);
end $$;

-- Start runs of flows that runs of workflows asked for. A start that start_flows would refuse is
-- ChildFailed in the parent's log: the parent's commit must not fail because of it, now and each
-- time that it is tried again. Returns the ids that were new, in no order, and (topic, payload)
-- notices.
-- Locks: the flows' starts, shared; ids of runs, in order; expects the turn rows of the parents
-- locked; events. Called by _start_children.
create or replace function holdfast._start_child_flows(
    p_now timestamptz, p_run_ids uuid[], p_names text[], p_versions int[], p_inputs json[],
    p_keys text[], p_queues text[], p_priorities int[], p_timeouts float8[],
    p_retentions float8[], p_tags json[], p_headers json[], p_parents uuid[],
    p_parent_keys text[], p_closes text[], out created uuid[], out notices text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_shapes text[] := array(
        select u.name || '@' || u.version
        from unnest(p_names, p_versions) with ordinality as u (name, version, place)
        order by u.place);
    v_refused record;
    v_places int[] := '{}';
    v_new record;
    v_begun text[];
begin
    perform holdfast._lock_starts(v_shapes);
    for v_refused in
        select r.* from holdfast._refused_starts(p_names, v_shapes, p_inputs) as r
        order by p_parents[r.place], r.place
    loop
        v_places := v_places || v_refused.place;
        if not holdfast._has_run(p_run_ids[v_refused.place]) then
            notices := notices || holdfast._refuse_child(p_now, p_parents[v_refused.place],
                p_parent_keys[v_refused.place], p_run_ids[v_refused.place], v_refused.kind,
                v_refused.message);
        end if;
    end loop;
    created := '{}';
    if cardinality(v_places) = cardinality(p_run_ids) then
        return;
    end if;
    select array_agg(u.run_id) as run_ids, array_agg(u.shape) as shapes,
        array_agg(u.input) as inputs, array_agg(u.key) as keys, array_agg(u.queue) as queues,
        array_agg(u.priority) as priorities, array_agg(u.timeout) as timeouts,
        array_agg(u.retention) as retentions, array_agg(u.tags) as tags,
        array_agg(u.headers) as headers, array_agg(u.parent) as parents,
        array_agg(u.parent_key) as parent_keys, array_agg(u.close) as closes
    into v_new
    from unnest(p_run_ids, v_shapes, p_inputs, p_keys, p_queues, p_priorities, p_timeouts,
        p_retentions, p_tags, p_headers, p_parents, p_parent_keys, p_closes) with ordinality
        as u (run_id, shape, input, key, queue, priority, timeout, retention, tags, headers,
            parent, parent_key, close, place)
    where u.place <> all (v_places);
    select s.created, s.notices into created, v_begun
    from holdfast._start_flows(p_now, v_new.run_ids, v_new.shapes, v_new.inputs, v_new.keys,
        v_new.queues, v_new.priorities, v_new.timeouts, v_new.retentions, v_new.tags,
        v_new.headers, v_new.parents, v_new.parent_keys, v_new.closes) as s;
    notices := notices || v_begun;
end $$;
