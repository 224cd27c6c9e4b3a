-- Start runs of flows.

-- Start runs: each gets its row, WorkflowStarted, its turn row and the tasks of its root steps. A
-- run whose id exists is left as it is. The arrays are parallel; one that is null or short stands
-- for nulls, and a null for the default. A flow is slug@version, or a slug alone for the newest
-- shape. Moments are microseconds, durations seconds; a waiter is a topic that is told of the run's
-- end. The first row has the (topic, payload) notices. The start of one run sends them itself if it
-- can, with p_tell, the schema's name.
--
-- A run with a start or a delay exists at once, and its steps are due from that moment on. If it
-- has nothing to do, because its maps are empty and the conditions of its steps do not hold, it
-- completes at once.
--
-- Refuses flows that do not exist (HF003), ids of runs of something else (HF001), and values that
-- are not allowed (22004, 22023), such as an input that is not an array for a root step that maps
-- over it. Locks: shapes, shared with other starts; the ids that it inserts, in order; FOR SHARE,
-- the existing runs for which a waiter is given. Called by clients and start_flow.
create or replace function holdfast.start_flows(
    p_run_ids uuid[], p_flows text[], p_inputs json[] default null, p_keys text[] default null,
    p_queues text[] default null, p_priorities int[] default null,
    p_timeouts float8[] default null, p_retentions float8[] default null,
    p_tags json[] default null, p_headers json[] default null, p_waiters text[] default null,
    p_start_ats bigint[] default null, p_delays float8[] default null,
    p_tell text default null
) returns table (run_id uuid, created boolean, status text, notices text[])
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := holdfast.now();
    v_starts holdfast._start[];
    v_created uuid[];
begin
    if num_nonnulls(p_timeouts, p_tags, p_headers, p_start_ats, p_delays) = 0
        and greatest(cardinality(p_run_ids), cardinality(p_flows), cardinality(p_inputs),
            cardinality(p_keys), cardinality(p_queues), cardinality(p_priorities),
            cardinality(p_retentions), cardinality(p_waiters)) = 1
        and strpos(p_flows[1], '@') > 0
        and holdfast._is_plain_start(p_run_ids[1], split_part(p_flows[1], '@', 1), p_inputs[1],
            p_keys[1], p_queues[1], p_priorities[1], p_retentions[1], p_waiters[1])
    then
        notices := holdfast._start_plain_flow(v_now, p_run_ids[1], p_flows[1], p_inputs[1],
            p_keys[1], p_queues[1], p_priorities[1], p_retentions[1], p_waiters[1]);
        if notices is not null then
            notices := holdfast._tell(p_tell, notices);
            run_id := p_run_ids[1];
            created := true;
            status := 'running';
            return next;
            return;
        end if;
    end if;
    v_starts := holdfast._lock_starts(holdfast._starts(v_now, p_run_ids,
        array(
            select case when holdfast._version_in(u.flow) is null then u.flow
                else split_part(u.flow, '@', 1) end
            from unnest(p_flows) with ordinality as u (flow, place) order by u.place),
        p_inputs,
        array(
            select holdfast._version_in(u.flow)
            from unnest(p_flows) with ordinality as u (flow, place) order by u.place),
        p_keys, p_queues, p_priorities, p_start_ats, p_delays, p_timeouts, p_retentions, p_tags,
        p_headers, p_waiters));
    perform holdfast._check_shapes(v_starts);
    select s.created, s.notices into v_created, notices
    from holdfast._start_flows(v_now, v_starts) as s;
    if p_waiters is not null then
        perform holdfast._register_waiters(p_run_ids, p_waiters);
    end if;
    if cardinality(v_created) < cardinality(v_starts) then
        perform holdfast._check_workflows(array_agg(u.run_id), array_agg(u.name))
        from unnest(v_starts) as u;
    end if;
    notices := case when cardinality(p_run_ids) = 1 then holdfast._tell(p_tell, notices)
        else holdfast._as_work(notices) end;
    return query
    select u.run_id, u.run_id = any (v_created)
            and row_number() over (partition by u.run_id order by u.place) = 1,
        r.status, case when u.place = 1 then notices end
    from unnest(p_run_ids) with ordinality as u (run_id, place)
    cross join lateral (
        select r.status from holdfast.runs r where r.run_id = u.run_id limit 1
    ) as r
    order by u.place;
end $$;

-- Return the version in slug@version, null if there is none. It is also null if what follows the @
-- cannot be a version: the caller then takes the whole text as the name, which is refused. Locks
-- nothing. Called by start_flows.
create or replace function holdfast._version_in(p_flow text) returns int
language sql immutable parallel safe
return case when strpos(p_flow, '@') > 0 and length(p_flow) - strpos(p_flow, '@') between 1 and 9
    and translate(substr(p_flow, strpos(p_flow, '@') + 1), '0123456789', '') = ''
    then split_part(p_flow, '@', 2)::int end;

-- Move the steps of new runs to the moments from which these may run; runs that are steps of theirs
-- have them already. Locks: expects the runs to be new. Called by _start_flows.
create or replace function holdfast._start_later(
    p_now timestamptz, p_created uuid[], p_starts holdfast._start[]
) returns void
language plpgsql
as $$
begin
    update holdfast.tasks t
    set visible_at = t.visible_at + (l.visible_at - p_now)
    from (
        select distinct on (u.run_id) u.run_id, u.visible_at
        from unnest(p_starts) with ordinality as u
        where u.run_id = any (p_created)
        order by u.run_id, u.ordinality
    ) as l
    cross join lateral (
        select k.ctid, k.kind from holdfast.tasks k where k.run_id = l.run_id offset 0
    ) as k
    where l.visible_at <> p_now and t.ctid = k.ctid and k.kind = 'step';
end $$;

-- Refuse starts of flows that do not exist (HF003), and inputs over which a root step cannot map
-- (22023). Locks nothing. Called by start_flows, _continue_flow and run_as_flow.
create or replace function holdfast._check_shapes(p_starts holdfast._start[]) returns void
language plpgsql stable
as $$
declare
    v_refused record;
begin
    select r.* into v_refused from holdfast._judge_starts(p_starts) as r
    where r.kind is not null order by r.place limit 1;
    if v_refused.kind = 'UnknownFlow' then
        raise sqlstate 'HF003' using message = v_refused.message;
    elsif found then
        raise invalid_parameter_value using message = v_refused.message;
    end if;
end $$;

-- Note that shapes have a run: steps that are added from now on come into the next version.
-- Locks: the shapes that had none, skipping locked ones: _has_runs finds the run itself then.
-- Called by _start_flows, _continue_flow and run_as_flow.
create or replace function holdfast._seal_shapes(p_shapes text[]) returns void
language plpgsql
as $$
begin
    update holdfast.flows f set is_sealed = true
    where f.handler in (
        select f.handler from holdfast.flows f
        where f.handler = any (p_shapes) and not f.is_sealed
        for update skip locked);
end $$;

-- Lock the starts of flows, and return them with the names and versions of their shapes: those
-- without a version have the newest shape. Of a flow without a shape the version stays null.
-- Locks: the flows' starts, shared, by name. Called by start_flows, _start_child_flows,
-- _start_child_steps, run_as_flow, _lock_flow_starts and _start_tick_flows.
create or replace function holdfast._lock_starts(p_starts holdfast._start[])
returns holdfast._start[]
language plpgsql
as $$
declare
    v_shape text;
begin
    perform pg_advisory_xact_lock_shared(hashtext('holdfast.flow'), hashtext(f.slug))
    from (
        select distinct case when n.is_newest then holdfast._full_slug(n.name) else n.name end
            as slug
        from (select distinct u.name, u.version is null as is_newest from unnest(p_starts) as u)
            as n
        order by 1
    ) as f;
    for v_place in 1 .. cardinality(p_starts) loop
        if p_starts[v_place].version is null then
            v_shape := holdfast._newest_shape(p_starts[v_place].name);
            p_starts[v_place].name := coalesce(
                split_part(v_shape, '@', 1), p_starts[v_place].name);
            p_starts[v_place].version := split_part(v_shape, '@', 2)::int;
        end if;
    end loop;
    return p_starts;
end $$;

-- Return runs of flows to start, in their order from place 1, with why each is refused, nulls if it
-- is not: flows that do not exist, and inputs over which a root step cannot map. Locks nothing.
-- Called by _start_child_flows, _check_shapes, _start_child_steps and _start_tick_flows.
create or replace function holdfast._judge_starts(p_starts holdfast._start[])
returns table (place int, start holdfast._start, kind text, message text)
language plpgsql stable
as $$
begin
    return query
    select u.ordinality::int, p_starts[u.ordinality], case
            when f.handler is null then 'UnknownFlow'
            when m.step_slug is not null then 'InvalidInput' end,
        case when f.handler is null then format('flow %s does not exist: start a worker that has '
                'it, or run `holdfast flows compile`', concat_ws('@', u.name, u.version))
            when m.step_slug is not null then format('step %s of flow %s maps over the input, '
                'which must be an array, not %s', m.step_slug, u.name,
                coalesce(json_typeof(u.input), 'null')) end
    from unnest(p_starts) with ordinality as u
    left join lateral (
        select f.handler from holdfast.flows f where f.handler = u.name || '@' || u.version limit 1
    ) as f on true
    left join lateral (
        select s.step_slug from holdfast.steps s
        where s.handler = f.handler and s.deps_count = 0 and s.step_type = 'map'
            and coalesce(json_typeof(u.input), '') <> 'array'
        order by s.step_index limit 1
    ) as m on true
    order by u.ordinality;
end $$;

-- Start runs of shapes that exist, top ones or children. The shapes have their first run by it:
-- steps that are added come into the next version. No run is older than its shape, though p_now may
-- be: its caller may have waited while the shape was replaced. Returns the ids that were new, in no
-- order, and (topic, payload) notices.
-- Locks: expects the flows' starts locked, and the turn rows of the parents; the shapes if they
-- have no run yet; the ids, in order; runs that exist, so that they are not deleted. Called by
-- start_flows, _start_child_flows, _start_child_steps and _start_tick_flows.
create or replace function holdfast._start_flows(
    p_now timestamptz, p_starts holdfast._start[], out created uuid[], out notices text[]
)
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_asked record;
    v_roots holdfast._ready_step[];
    v_all_exist boolean := true;
begin
    select array_agg(u.run_id) as run_ids, array_agg(u.name || '@' || u.version) as shapes,
        array_agg(u.tags) as tags, bool_or(u.visible_at <> p_now) as are_later
    into v_asked
    from unnest(p_starts) as u;
    perform holdfast._seal_shapes(v_asked.shapes);
    with asked as materialized (
        select u.*, coalesce(u.queue, f.queue) as run_queue,
            greatest(p_now, f.created_at) as created_at, d.priority as run_priority,
            d.timeout as run_timeout, d.retention as kept
        from unnest(p_starts) with ordinality as u
        cross join lateral (
            select f.queue, f.created_at from holdfast.flows f
            where f.handler = u.name || '@' || u.version limit 1
        ) as f
        cross join lateral holdfast._with_declared(
            u.name, f.queue, u.priority, u.timeout, u.retention) as d
        order by u.run_id, u.ordinality
    ), started as (
        insert into holdfast.runs (run_id, kind, name, version, key, queue, priority, input, tags,
            headers, retention, deadline_at, created_at, parent_run_id, parent_key, parent_close,
            due_at)
        select a.run_id, 'flow', a.name, a.version, a.key, a.run_queue,
            a.run_priority, coalesce(a.input, 'null'),
            case when a.tags is null then '{}' else holdfast._tags(a.tags) end,
            a.headers, a.kept * interval '1 second',
            greatest(p_now, a.visible_at) + a.run_timeout * interval '1 second', a.created_at,
            a.parent_run_id, a.parent_key, a.parent_close,
            case when a.visible_at > p_now then a.visible_at end
        from asked a
        on conflict do nothing
        returning run_id, name || '@' || version as handler, queue, priority, parent_run_id
    ), logged as (
        insert into holdfast.events (run_id, idx, event_type, at)
        select s.run_id, 0, 'WorkflowStarted', p_now from started s
    ), turned as (
        insert into holdfast.tasks (run_id, kind, queue, handler, priority, visible_at, started_at,
            parent_run_id)
        select s.run_id, 'flow', s.queue, s.handler, s.priority, 'infinity', p_now, s.parent_run_id
        from started s
    ), roots as (
        select s.run_id, s.handler, p.*
        from started s
        cross join lateral (
            select p.step_slug, p.step_index, p.step_type, p.required_input_pattern is not null
                or p.forbidden_input_pattern is not null as is_conditional
            from holdfast.steps p where p.handler = s.handler and p.deps_count = 0 offset 0
        ) as p
    )
    select (select coalesce(array_agg(s.run_id), '{}') from started s), array_agg((
        r.run_id, r.handler, r.step_slug, r.step_type, r.is_conditional)::holdfast._ready_step
        order by r.run_id, r.step_index)
    into created, v_roots
    from roots r;
    if num_nonnulls(variadic v_asked.tags) > 0 then
        perform holdfast._add_attributes(created, v_asked.run_ids, v_asked.tags);
    end if;
    if cardinality(created) < cardinality(p_starts) then
        v_all_exist := holdfast._hold_runs(v_asked.run_ids);
    end if;

    if v_roots is not null then
        select a.notices into notices
        from holdfast._advance_flows(p_now, '{}', v_roots, '{}', '{}', null) as a;
        if v_asked.are_later then
            perform holdfast._start_later(p_now, created, p_starts);
            notices := holdfast._as_work(notices);  -- all workers are told of what is due later
        end if;
    end if;
    if not v_all_exist then  -- one was deleted meanwhile: its retention is over
        select _start_flows.created || s.created, _start_flows.notices || s.notices
        into created, notices
        from holdfast._start_flows(p_now, p_starts) as s;
    end if;
end $$;

-- Start a flow in the caller's transaction, and return its run. With a key the same run is found
-- again. A run that has ended is kept for as long as the flow's code has declared, else for 30
-- days. Workers find it when they look next; to wake them at once, notify them as well. Refuses
-- what start_flows does. Called by users.
create or replace function holdfast.start_flow(
    flow_slug text, input jsonb, run_id uuid default null, key text default null
) returns setof holdfast.runs
language plpgsql
as $$
declare
    v_name text;
    v_run_id uuid;
begin
    perform holdfast._check_given('the slug of a flow', start_flow.flow_slug is not null);
    v_name := holdfast._full_slug(start_flow.flow_slug);
    v_run_id := coalesce(start_flow.run_id,
        holdfast.keyed_run_id(v_name, start_flow.key), holdfast.new_run_id());
    perform holdfast.start_flows(
        array[v_run_id], array[v_name], array[start_flow.input::json], array[start_flow.key]);
    return query select r.* from holdfast.runs r where r.run_id = v_run_id;
end $$;
