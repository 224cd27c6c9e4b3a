-- Children: runs that runs start, and runs that continue as new.

-- Start the children of ChildStarted: runs of workflows and of flows. If the id belongs to another
-- run's child, or to a run without a parent, append ChildFailed to the log of the asking run; also
-- if a flow does not exist or refuses its input, or if a rule refuses the start. If this run has
-- started the child before, the child's end is told under the key of the first call. Returns
-- (topic, payload) notices.
-- Locks: ids of runs, in order, those of flows after those of workflows; as _start_child_flows and
-- _start_ruled_children; expects the turn rows of the parents locked; their events, run by run.
-- Called by _carry_out.
create or replace function holdfast._start_children(
    p_now timestamptz, p_run_ids uuid[], p_keys text[], p_details json[]
) returns text[]
language plpgsql
as $$
declare
    v_new record;
    v_created uuid[];
    v_count int := 0;
    v_told text[];
    v_notices text[];
begin
    for v_new in
        select c.is_flow, c.is_ruled, array_agg(c.start order by c.place) as starts
        from (
            select distinct on (c.child_run_id) u.place,
                holdfast._new_start(c.child_run_id, c.workflow_name, u.details -> 'input',
                    c.version, c.key, c.queue, c.priority, p_now, c.timeout, c.retention,
                    case when c.attributes is null then c.tags else json_build_object(
                        'tags', c.tags, 'attributes', c.attributes) end,
                    c.headers, u.run_id, u.key, c.parent_close) as start,
                case when c.kind is not null then c.kind = 'flow'  -- null: known by name only
                    else exists (
                        select from holdfast.flows f
                        where f.handler = c.workflow_name || '@' || c.version) end as is_flow,
                exists (
                    select from holdfast.start_rules r where r.name = c.workflow_name) as is_ruled
            from unnest(p_run_ids, p_keys, p_details) with ordinality
                as u (run_id, key, details, place)
            cross join lateral json_to_record(u.details) as c (
                kind text, child_run_id uuid, workflow_name text, version int, key text,
                queue text, priority int, parent_close text, timeout float8, retention float8,
                tags json, headers json, attributes json)
            order by c.child_run_id, u.place
        ) as c
        group by c.is_flow, c.is_ruled order by c.is_flow, c.is_ruled
    loop
        if v_new.is_flow or v_new.is_ruled then
            if v_new.is_flow then
                select s.created, s.notices into v_created, v_told
                from holdfast._start_child_flows(p_now, v_new.starts) as s;
            else
                select s.created, s.notices into v_created, v_told
                from holdfast._start_ruled_children(p_now, v_new.starts) as s;
            end if;
            v_notices := v_notices || v_told;
        else
            v_created := holdfast._start_runs(p_now, v_new.starts);
            select v_notices || array_agg(array[holdfast._hint_topic('starts', q.tasks), q.queue])
            into v_notices
            from (
                select coalesce(c.queue, holdfast._queue_of(c.run_id)) as queue, count(*) as tasks
                from unnest(v_new.starts) as c
                where cardinality(v_created) = cardinality(v_new.starts)
                    or c.run_id = any (v_created)
                group by 1
            ) as q;
        end if;
        v_count := v_count + cardinality(v_created);
    end loop;
    if v_count < cardinality(p_run_ids) then
        v_notices := v_notices || holdfast._refuse_children(p_now, p_run_ids, p_keys, p_details);
    end if;
    return v_notices;
end $$;

-- Tell runs that a run which they asked for is not their child. It may name a run of the same id as
-- its parent, which was deleted: then it is older than this commit, and the log has no other start
-- of it. Returns (topic, payload) notices.
-- Locks: expects the turn rows locked; events, run by run. Called by _start_children.
create or replace function holdfast._refuse_children(
    p_now timestamptz, p_run_ids uuid[], p_keys text[], p_details json[]
) returns text[]
language plpgsql
as $$
declare
    v_notices text[];
    v_refused record;
begin
    for v_refused in
        select u.run_id, u.key, r.run_id as child_id
        from unnest(p_run_ids, p_keys, p_details) with ordinality as u (run_id, key, details, place)
        cross join lateral (
            select r.run_id, r.parent_run_id, r.created_at from holdfast.runs r
            where r.run_id = (u.details ->> 'child_run_id')::uuid limit 1
        ) as r
        where r.parent_run_id is distinct from u.run_id
            or r.created_at < p_now and not exists (
                select from holdfast.events e
                where e.run_id = u.run_id and e.event_type = 'ChildStarted' and e.key <> u.key
                    and (e.details ->> 'child_run_id')::uuid = r.run_id)
        order by u.run_id, u.place
    loop
        v_notices := v_notices || holdfast._refuse_child(p_now, v_refused.run_id, v_refused.key,
            v_refused.child_id, 'RunExists', format(
                'run %s exists, and is not a child of this run: use another key',
                v_refused.child_id));
    end loop;
    return v_notices;
end $$;

-- Tell a run that a child was not started; p_kind is a class of holdfast.errors. Returns
-- (topic, payload) notices.
-- Locks: expects the turn row locked; events. Called by _refuse_children, _start_child_flows
-- and _start_ruled_children.
create or replace function holdfast._refuse_child(
    p_now timestamptz, p_run_id uuid, p_key text, p_child_id uuid, p_kind text, p_message text
) returns text[]
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    if holdfast._append(p_now, p_run_id, 'ChildFailed', json_build_object(
            'child_run_id', p_child_id, 'status', 'refused', 'error', json_build_object(
                'kind', 'holdfast.errors.' || p_kind, 'message', p_message)), p_key) is null
    then
        return null;
    end if;
    return holdfast._wake(p_now, p_run_id, ':end');
end $$;

-- Ask the children of ChildCancelRequested to stop, or the last runs that they continued as. A run
-- that is not a child of the asking run is left alone. Returns (topic, payload) notices.
-- Locks: turn rows, most of which commit has locked; then as _cancel. Called by _carry_out.
create or replace function holdfast._cancel_children(
    p_now timestamptz, p_run_ids uuid[], p_details json[]
) returns text[]
language plpgsql
as $$
declare
    v_run_ids uuid[];
    v_details json[];
    v_locked uuid[] := '{}';
begin
    loop  -- until all are locked: one may have continued before it was
        select array_agg(n.newest order by u.place),
            array_agg(holdfast._reason(u.reason) order by u.place)
        into v_run_ids, v_details
        from (
            select (u.details ->> 'child_run_id')::uuid as run_id, u.details ->> 'reason' as reason,
                u.run_id as parent_run_id, u.place
            from unnest(p_run_ids, p_details) with ordinality as u (run_id, details, place)
        ) as u
        join holdfast.newest_runs(array(
            select (d.details ->> 'child_run_id')::uuid from unnest(p_details) as d (details)
        )) as n on n.run_id = u.run_id
        cross join lateral (
            select r.parent_run_id from holdfast.runs r where r.run_id = n.newest limit 1
        ) as r
        where r.parent_run_id = u.parent_run_id;
        exit when coalesce(v_run_ids, '{}') <@ v_locked;
        perform holdfast._lock_turns(v_run_ids);
        v_locked := v_run_ids;
    end loop;
    return c.notices from holdfast._cancel(p_now, v_run_ids, v_details) as c;
end $$;

-- Start the runs that continue others. They have the same properties but no key, the same time
-- limits, the attributes, the signals that were not read, the subscriptions to topics, and the
-- places of limits; the build is that of a new start. A singleton's next run takes its key. Those
-- that are the next attempts of others begin after a pause, and are these runs in all but their
-- ids: see _copy_attempts. They are as old, but for lists, in which they come after them. Returns
-- (topic, payload) notices.
-- Locks: ids of runs; of singletons, the row of the key; subscriptions; rows of holders; webhooks;
-- as _continue_streams. Called by _carry_out.
create or replace function holdfast._continue_runs(
    p_now timestamptz, p_run_ids uuid[], p_details json[]
) returns text[]
language plpgsql
as $$
declare
    v_notices text[];
begin
    with asked as materialized (
        select r.*, (u.details ->> 'run_id')::uuid as new_run_id,
            (u.details ->> 'version')::int as new_version,
            coalesce(u.details -> 'input', 'null') as new_input,
            coalesce(u.details -> 'signals', '[]') as signals,
            p_now + (u.details -> 'attempt' ->> 'delay')::float8 * interval '1 second' as again_at,
            case when exists (select from holdfast.builds) then holdfast._build_of_start(
                (u.details ->> 'run_id')::uuid, r.name, (u.details ->> 'version')::int)
                end as new_build
        from unnest(p_run_ids, p_details) as u (run_id, details)
        cross join lateral (
            select * from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as r
    ), started as (
        insert into holdfast.runs (run_id, name, version, queue, priority, input, tags, headers,
            retention, deadline_at, parent_run_id, parent_key, parent_close, singleton_key,
            created_at, build, key, due_at, clock_at)
        select a.new_run_id, a.name, a.new_version, a.queue, a.priority,
            case when a.again_at is null then a.new_input else a.input end, a.tags,
            holdfast._successor_headers(a.headers, a.run_id), a.retention,
            case when a.again_at is null then p_now + (a.deadline_at - a.created_at)
                else a.deadline_at end,
            a.parent_run_id, a.parent_key, a.parent_close, a.singleton_key,
            case when a.again_at is null then p_now
                else a.created_at + interval '1 microsecond' end,
            case when a.again_at is null then a.new_build else a.build end,
            case when a.again_at is not null then a.key end,
            a.again_at,
            case when a.again_at is not null then coalesce(a.clock_at, a.started_at) end
        from asked a
        order by a.new_run_id
        on conflict do nothing
        returning run_id
    ), logged as (
        insert into holdfast.events (run_id, idx, event_type, key, details, at)
        select s.run_id, e.idx, e.event_type, e.key, e.details, p_now
        from started s
        join asked a on a.new_run_id = s.run_id and a.again_at is null
        cross join lateral (
            select 0 as idx, 'WorkflowStarted' as event_type, a.run_id::text as key,
                null::json as details
            union all
            select c.idx, 'SignalReceived', c.signal ->> 'key', holdfast._signal(
                c.signal ->> 'signal_name', coalesce(c.signal -> 'input', 'null'),
                (c.signal ->> 'update')::boolean, c.signal ->> 'reply_to')
            from json_array_elements(a.signals) with ordinality as c (signal, idx)
        ) as e
    ), queued as (
        insert into holdfast.tasks (run_id, queue, handler, priority, visible_at, parent_run_id,
            clock_at)
        select s.run_id, a.queue, holdfast._turn_handler(a.name, a.new_version,
                case when a.again_at is null then a.new_build else a.build end),
            a.priority, coalesce(a.again_at, p_now), case when a.parent_run_id is not null
                then holdfast._first_parent(a.parent_run_id, a.parent_key) end,
            case when a.again_at is not null then coalesce(a.clock_at, a.started_at) end
        from started s
        join asked a on a.new_run_id = s.run_id
        returning queue
    ), moved as (
        update holdfast.start_keys k set run_id = a.new_run_id
        from asked a
        where a.singleton_key is not null and k.rule = 'singleton' and k.name = a.name
            and k.key = a.singleton_key and k.run_id = a.run_id
    )
    select array_agg(distinct array['starts', q.queue]) into v_notices from queued q;
    perform holdfast._copy_attempts(p_run_ids, p_details);
    perform holdfast._copy_attributes(
        p_run_ids, array(
            select (u.details ->> 'run_id')::uuid from unnest(p_details) as u (details)));
    if exists (select from holdfast.subscriptions s where s.run_id = any (p_run_ids)) then
        perform holdfast._move_subscriptions(p_run_ids, p_details);
    end if;
    if exists (select from holdfast.limits) then
        perform holdfast._pass_places(p_run_ids, p_details);
    end if;
    perform holdfast._continue_streams(p_run_ids, p_details);
    return v_notices;
end $$;
