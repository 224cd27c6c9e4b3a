-- Runs that were started by name before the database had the flow of this name.

-- Make the run of a flow of a run that was started as one of a workflow: a caller without its code
-- could not know better. The worker has claimed the run, and its app has the flow. Returns the
-- (topic, payload) notices, null if the lease is not the worker's, or if code has run already.
-- Refuses what start_flows refuses of a flow and its input.
-- Locks: the flow's starts, shared; turn rows as _lock_flows. Called by workers.
create or replace function holdfast.run_as_flow(p_worker text, p_run_id uuid, p_lease int)
returns text[]
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_run holdfast.runs;
    v_shape text;
    v_roots holdfast._ready_step[];
    v_notices text[];
begin
    select r.* into v_run from holdfast.runs r where r.run_id = p_run_id;
    v_shape := v_run.name || '@' || v_run.version;
    perform holdfast._check_shapes(holdfast._lock_starts(array[
        holdfast._new_start(p_run_id, v_run.name, v_run.input, v_run.version)]));
    perform holdfast._lock_flows(array[p_run_id]);  -- it may end at once
    update holdfast.tasks t
    set kind = 'flow', worker = null, sticky_worker = null, visible_at = 'infinity', attempts = 0
    where t.run_id = p_run_id and t.key = '' and t.kind = 'workflow' and t.worker = p_worker
        and t.lease_no = p_lease and not holdfast._made_progress(p_run_id, 0);
    if not found then
        return null;
    end if;
    update holdfast.runs r set kind = 'flow' where r.run_id = p_run_id;
    perform holdfast._seal_shapes(array[v_shape]);
    v_roots := array(
        select (p_run_id, s.handler, s.step_slug, s.step_type, s.required_input_pattern is not null
            or s.forbidden_input_pattern is not null)::holdfast._ready_step
        from holdfast.steps s where s.handler = v_shape and s.deps_count = 0
        order by s.step_index);
    select a.notices into v_notices
    from holdfast._advance_flows(v_now, '{}', v_roots, '{}', '{}', null) as a;
    return coalesce(holdfast._as_work(v_notices), '{}');
end $$;
