-- Families: the parent of a run that ends, and its open descendants.

-- Append the ends of children to the logs of their parents, as one block for each parent, and wake
-- the parents that await an end. A child that continued as new has not ended, and a parent that has
-- ended is not told. Returns (topic, payload) notices.
-- Locks: the parents' turn rows, which callers have locked, but for a retry that has taken over a
-- child meanwhile; events, run by run. Called by commit, _end_each, _end_flows and _hear_children.
create or replace function holdfast._tell_parents(p_now timestamptz, p_run_ids uuid[])
returns text[]
language plpgsql
as $$
declare
    v_notices text[];
    v_parent record;
begin
    for v_parent in
        select r.parent_run_id as run_id, array_agg(r.parent_key order by r.run_id) as keys,
            array_agg(case r.status when 'completed' then 'ChildCompleted' else 'ChildFailed' end
                order by r.run_id) as types,
            array_agg(holdfast._end_of_child(r.run_id, r.status, r.output, r.error)
                order by r.run_id) as details,
            array_agg(r.run_id order by r.run_id) as children,
            array_agg(r.output) filter (where holdfast._refers(r.output)) as references
        from unnest(p_run_ids) as u (run_id)
        cross join lateral (
            select * from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as r
        where r.status <> 'continued'
        group by r.parent_run_id
        order by r.parent_run_id
    loop
        perform holdfast._lock_turns(array[v_parent.run_id]);
        if v_parent.references is not null then
            perform holdfast._use_payloads(v_parent.run_id, v_parent.references);
        end if;
        if exists (
            select from holdfast.tasks t
            where t.run_id = v_parent.run_id and t.key = '' and t.kind = 'flow')
        then
            v_notices := v_notices
                || holdfast._tell_flow(p_now, v_parent.run_id, v_parent.keys, v_parent.children);
        elsif holdfast._append_block(
            p_now, v_parent.run_id, v_parent.types, v_parent.keys, v_parent.details) is not null
        then
            v_notices := v_notices || holdfast._wake(p_now, v_parent.run_id, ':end');
        end if;
    end loop;
    return v_notices;
end $$;

-- Return the details of a child's end in its parent's log. Called by _tell_parents.
create or replace function holdfast._end_of_child(
    p_run_id uuid, p_status text, p_output json, p_error json
) returns json
language sql stable
return ('{"child_run_id":"' || p_run_id || case p_status
    when 'completed' then '","output":' || coalesce(p_output::text, 'null')
    else '","status":"' || p_status || '","error":' || coalesce(p_error::text, 'null') end
    || '}')::json;

-- Apply the close policies to the open children of runs that have ended: 'terminate' ends them, and
-- their children by the same rule; 'cancel' asks them to stop; 'abandon' leaves them alone. Returns
-- (topic, payload) notices.
-- Locks: expects the turn rows locked as by _lock_family; events and runs. Called by commit and
-- _end_each.
create or replace function holdfast._close_children(p_now timestamptz, p_run_ids uuid[])
returns text[]
language plpgsql
as $$
declare
    v_why json := holdfast._reason('its parent ended');
    v_notices text[];
    v_terminated uuid[];
    v_cancelled uuid[];
begin
    select array_agg(c.run_id) filter (where c.parent_close = 'terminate'),
        array_agg(c.run_id) filter (where c.parent_close = 'cancel')
    into v_terminated, v_cancelled
    from unnest(p_run_ids) as u (run_id)
    cross join lateral (
        select r.run_id, r.parent_close, r.status from holdfast.runs r
        where r.parent_run_id = u.run_id offset 0
    ) as c
    where c.status = 'running';
    if v_terminated is not null then
        select e.notices into v_notices
        from holdfast._end_each(p_now, v_terminated, 'terminated', 'WorkflowTerminated',
            array_fill(v_why, array[cardinality(v_terminated)])) as e;
    end if;
    if v_cancelled is not null then
        select v_notices || c.notices into v_notices
        from holdfast._cancel(
            p_now, v_cancelled, array_fill(v_why, array[cardinality(v_cancelled)])) as c;
    end if;
    return v_notices;
end $$;

-- Return the open runs that end or are asked to stop when these runs end: their children with such
-- a close policy, and, of children that end, their children again. Locks nothing. Called by
-- _lock_family and _lock_families.
create or replace function holdfast._open_descendants(p_run_ids uuid[]) returns uuid[]
language plpgsql stable
as $$
begin
    return array(
        with recursive family as (
            select u.run_id, true as ends, false as is_descendant
            from unnest(p_run_ids) as u (run_id)
            union
            select c.run_id, c.parent_close = 'terminate' or c.kind = 'flow', true
            from family h
            cross join lateral (
                select r.run_id, r.parent_close, r.status, r.kind from holdfast.runs r
                where r.parent_run_id = h.run_id offset 0
            ) as c
            where h.ends and c.parent_close <> 'abandon' and c.status = 'running'
        )
        select h.run_id from family h where h.is_descendant);
end $$;

-- Return the parents that have to be told if these runs end; runs that have ended already do not
-- count. A parent that is a flow may end with its step, so its parent counts as well, and so on up
-- to the first workflow. Locks nothing. Called by all that end runs from outside.
create or replace function holdfast._parents(p_run_ids uuid[]) returns uuid[]
language plpgsql stable
as $$
begin
    return array(
        with recursive told as (
            select r.parent_run_id as run_id
            from unnest(p_run_ids) as u (run_id)
            cross join lateral (
                select t.parent_run_id from holdfast.tasks t
                where t.run_id = u.run_id and t.key = '' limit 1
            ) as t
            cross join lateral (  -- that of the task may have been retried
                select r.parent_run_id from holdfast.runs r where r.run_id = u.run_id limit 1
            ) as r
            where t.parent_run_id is not null
            union
            select r.parent_run_id
            from told p
            cross join lateral (
                select t.parent_run_id, t.kind from holdfast.tasks t
                where t.run_id = p.run_id and t.key = '' limit 1
            ) as t
            cross join lateral (
                select r.parent_run_id from holdfast.runs r where r.run_id = p.run_id limit 1
            ) as r
            where t.kind = 'flow' and t.parent_run_id is not null
        )
        select p.run_id from told p);
end $$;

-- Lock the turn rows of runs, and of the open descendants of those that are ending, by run_id.
-- Returns the runs that have one. Any flow among the runs may end: a cancel ends it at once, and so
-- may the end of a step of it. A child that was started meanwhile is locked after the others: if
-- that leads to a deadlock, the caller tries again. Called by commit and by all that end runs from
-- outside.
create or replace function holdfast._lock_family(p_run_ids uuid[], p_ending uuid[]) returns uuid[]
language plpgsql
as $$
declare
    v_ending uuid[] := p_ending || holdfast._flows_among(p_run_ids);
    v_run_ids uuid[] := p_run_ids || holdfast._open_descendants(v_ending);
    v_all uuid[] := v_run_ids;
    v_locked uuid[] := '{}';
begin
    loop
        v_locked := v_locked || holdfast._lock_turns(v_run_ids);
        v_run_ids := array(
            select unnest(holdfast._open_descendants(v_ending)) except select unnest(v_all));
        exit when cardinality(v_run_ids) = 0;
        v_all := v_all || v_run_ids;
    end loop;
    return v_locked;
end $$;

-- Lock the turn rows of runs that are to end, of their parents and of their open descendants, by
-- run_id. Returns the runs for which all rows are locked. A run is left out if another transaction
-- has locked its row or its parent's: one long transaction must not hold up the ends of other runs.
-- For rows of descendants the call waits. Called by time_out_runs and fail_poisoned.
create or replace function holdfast._lock_families(p_run_ids uuid[]) returns uuid[]
language plpgsql
as $$
declare
    v_told uuid[] := holdfast._parents(p_run_ids);
    v_descendants uuid[] := holdfast._open_descendants(p_run_ids || holdfast._flows_among(v_told));
    v_busy uuid[] := '{}';
    v_run_ids uuid[];
    v_run_id uuid;
begin
    -- One by one and in one order: some are waited for, and some are not.
    for v_run_id in
        select distinct u.run_id
        from unnest(p_run_ids || v_told || v_descendants) as u (run_id)
        order by u.run_id
    loop
        if v_run_id = any (v_descendants) then
            perform holdfast._lock_turns(array[v_run_id]);
            continue;
        end if;
        perform from holdfast.tasks t
        where t.run_id = v_run_id and t.key = '' for update skip locked;
        if not found and exists (
            select from holdfast.tasks t where t.run_id = v_run_id and t.key = '')
        then
            v_busy := v_busy || v_run_id;
        end if;
    end loop;
    select coalesce(array_agg(u.run_id), '{}') into v_run_ids
    from unnest(p_run_ids) as u (run_id)
    where u.run_id <> all (v_busy) and not holdfast._parents(array[u.run_id]) && v_busy;
    perform holdfast._lock_family(  -- children that came meanwhile
        v_run_ids || holdfast._parents(v_run_ids), v_run_ids);
    return v_run_ids;
end $$;
