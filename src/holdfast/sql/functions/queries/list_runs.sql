-- Lists of runs, newest first. What a list costs does not grow with the number of runs: it starts
-- from the index that leads to the fewest runs. If they can only be found by looking at one run
-- after the other, it looks at a bounded number of them and says how far it came.

-- Return runs as a caller sees them: with the row of the next turn, and the state derived from it.
-- Without p_payloads, input and output are null. Called by get_runs and list_runs.
create or replace function holdfast._show_runs(p_run_ids uuid[], p_payloads boolean)
returns table (
    run_id uuid, name text, version int, key text, queue text, priority int, status text,
    state text, input json, output json, error json, tags text[], headers json,
    retention_seconds float8, created_at bigint, started_at bigint, completed_at bigint,
    deadline_at bigint, visible_at bigint, awaiting text[], worker text, attempts int,
    lease_no int, stuck text, paused boolean, parent_run_id uuid, parent_key text, kind text
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    return query
    select r.run_id, r.name, r.version, r.key, r.queue, r.priority::int, r.status,
        case when r.kind = 'flow' and r.status = 'running'
            then holdfast._flow_state(r.run_id, t.paused)
            else holdfast._state(r.status, t.worker, t.paused, t.stuck,
                coalesce(t.limited_at, t.visible_at)) end,
        case when p_payloads then r.input end, case when p_payloads then r.output end,
        r.error, r.tags, r.headers,
        extract(epoch from r.retention)::float8, holdfast._micros(r.created_at),
        holdfast._micros(coalesce(r.started_at, t.started_at)),
        holdfast._micros(r.completed_at), holdfast._micros(r.deadline_at),
        holdfast._micros(coalesce(t.limited_at, t.visible_at)), t.awaiting, t.worker, t.attempts,
        t.lease_no, t.stuck, t.paused, r.parent_run_id, r.parent_key, r.kind
    from unnest(p_run_ids) with ordinality as u (run_id, place)
    cross join lateral (
        select * from holdfast.runs r where r.run_id = u.run_id limit 1
    ) as r
    left join lateral (
        select * from holdfast.tasks t where t.run_id = u.run_id and t.key = '' limit 1
    ) as t on true
    order by u.place;
end $$;

-- Return runs; without p_payloads, input and output are null. Called by clients and wait_for_end.
create or replace function holdfast.get_runs(p_run_ids uuid[], p_payloads boolean default true)
returns table (
    run_id uuid, name text, version int, key text, queue text, priority int, status text,
    state text, input json, output json, error json, tags text[], headers json,
    retention_seconds float8, created_at bigint, started_at bigint, completed_at bigint,
    deadline_at bigint, visible_at bigint, awaiting text[], worker text, attempts int,
    lease_no int, stuck text, paused boolean, parent_run_id uuid, parent_key text, kind text
)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select * from holdfast._show_runs(p_run_ids, p_payloads)
$$;

-- Return the runs that may be in one of the states queued, running, stuck and paused, from the few
-- rows of tasks in that state: turns, and steps of flows, so a run may come several times. More
-- than p_limit rows if there are more. Called by _list_ids.
create or replace function holdfast._active_runs(p_states text[], p_limit int)
returns setof uuid
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    if 'running' = any (p_states) then
        return query
        select t.run_id from holdfast.tasks t
        where t.worker is not null and (t.key = '' or t.kind = 'step')
        limit p_limit + 1;
    end if;
    if 'stuck' = any (p_states) then
        return query
        select t.run_id from holdfast.tasks t where t.stuck is not null limit p_limit + 1;
    end if;
    if 'paused' = any (p_states) then
        return query
        select t.run_id from holdfast.tasks t where t.paused and t.key = '' limit p_limit + 1;
    end if;
    if 'queued' = any (p_states) then
        return query
        with recursive ranges as (
            select n.* from holdfast._next_range('', '') as n
            union all
            select n.*
            from ranges l cross join lateral holdfast._next_range(l.queue, l.handler) as n
        )
        select t.run_id
        from ranges l
        cross join generate_series(0, 4) as p (priority)
        cross join lateral (
            select t.run_id from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler and t.priority = p.priority
                and t.worker is null and t.visible_at <= holdfast.now()
                and (t.key = '' or t.kind = 'step')
            order by t.visible_at
            limit p_limit + 1
        ) as t
        limit p_limit + 1;
        return query  -- those that wait for limits
        select t.run_id
        from holdfast._limited_ranges() as l
        cross join lateral (
            select t.run_id from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler
                and t.limited_at is not null and not t.paused
                and (t.key = '' or t.kind = 'step')
            limit p_limit + 1
        ) as t
        limit p_limit + 1;
    end if;
end $$;

-- Return true if a run is of these times, and comes after the run of p_before_at and p_before_id in
-- a list with the newest first. Inlined, so that indexes serve it. Called by _walk_runs.
create or replace function holdfast._is_on_page(
    p_created_at timestamptz, p_run_id uuid, p_since timestamptz, p_until timestamptz,
    p_before_at timestamptz, p_before_id uuid
) returns boolean
language sql immutable parallel safe
return (p_since is null or p_created_at >= p_since)
    and (p_until is null or p_created_at < p_until)
    and (p_before_at is null or (p_created_at, p_run_id) < (p_before_at, p_before_id));

-- Return runs, newest first, from after the run of p_before_at and p_before_id on: of p_candidates,
-- or of the children of p_parent_run_id, or else of the runs of these names (null: all) and
-- statuses. Called by _list_ids.
create or replace function holdfast._walk_runs(
    p_candidates uuid[], p_parent_run_id uuid, p_names text[], p_statuses text[],
    p_since timestamptz, p_until timestamptz, p_before_at timestamptz, p_before_id uuid, p_limit int
) returns table (run_id uuid, created_at timestamptz)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    if p_candidates is not null then
        return query
        select r.run_id, r.created_at
        from (select distinct u.run_id from unnest(p_candidates) as u (run_id)) as u
        cross join lateral (
            select r.run_id, r.created_at from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as r
        where holdfast._is_on_page(
            r.created_at, r.run_id, p_since, p_until, p_before_at, p_before_id)
        order by r.created_at desc, r.run_id desc
        limit p_limit;
    elsif p_parent_run_id is not null then
        return query
        select r.run_id, r.created_at
        from holdfast.runs r
        where r.parent_run_id = p_parent_run_id
            and holdfast._is_on_page(
                r.created_at, r.run_id, p_since, p_until, p_before_at, p_before_id)
        order by r.created_at desc, r.run_id desc
        limit p_limit;
    elsif p_names is not null then
        return query
        select r.run_id, r.created_at
        from (select distinct u.name from unnest(p_names) as u (name)) as n
        cross join unnest(p_statuses) as s (status)
        cross join lateral (
            select r.run_id, r.created_at
            from holdfast.runs r
            where r.name = n.name and r.status = s.status
                and holdfast._is_on_page(
                    r.created_at, r.run_id, p_since, p_until, p_before_at, p_before_id)
            order by r.created_at desc, r.run_id desc
            limit p_limit
        ) as r
        order by r.created_at desc, r.run_id desc
        limit p_limit;
    else
        return query
        select r.run_id, r.created_at
        from unnest(p_statuses) as s (status)
        cross join lateral (
            select r.run_id, r.created_at
            from holdfast.runs r
            where r.status = s.status
                and holdfast._is_on_page(
                    r.created_at, r.run_id, p_since, p_until, p_before_at, p_before_id)
            order by r.created_at desc, r.run_id desc
            limit p_limit
        ) as r
        order by r.created_at desc, r.run_id desc
        limit p_limit;
    end if;
end $$;

-- Return true if a JSON text contains another as jsonb does; false for one that jsonb cannot hold:
-- a run that was started with it must not hide all others. Called by _matching_runs.
create or replace function holdfast._contains(p_value json, p_pattern jsonb) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return p_value::jsonb @> p_pattern;
exception
    when data_exception or program_limit_exceeded then
        return false;
end $$;

-- Return those of some runs, in their order, that match the filters that are not null. Called by
-- _list_ids.
create or replace function holdfast._matching_runs(
    p_run_ids uuid[], p_states text[], p_names text[], p_queues text[], p_tags text[], p_key text,
    p_parent_run_id uuid, p_input_contains jsonb, p_limit int
) returns setof uuid
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
as $$
begin
    return query
    select r.run_id
    from unnest(p_run_ids) with ordinality as u (run_id, place)
    cross join lateral (
        select * from holdfast.runs r where r.run_id = u.run_id limit 1
    ) as r
    left join lateral (
        select * from holdfast.tasks t where t.run_id = u.run_id and t.key = '' limit 1
    ) as t on p_states is not null
    where (p_states is null
            or case when r.kind = 'flow' and r.status = 'running'
                then holdfast._flow_state(r.run_id, t.paused)
                else holdfast._state(r.status, t.worker, t.paused, t.stuck,
                    coalesce(t.limited_at, t.visible_at))
            end = any (p_states))
        and (p_names is null or r.name = any (p_names))
        and (p_queues is null or r.queue = any (p_queues))
        and (p_tags is null or r.tags @> p_tags)
        and (p_key is null or r.key = p_key)
        and (p_parent_run_id is null or r.parent_run_id = p_parent_run_id)
        and (p_input_contains is null or holdfast._contains(r.input, p_input_contains))
    order by u.place
    limit p_limit;
end $$;

-- Return the ids of runs, newest first, that match all of the filters that are not null. At most
-- p_bound runs are looked at one by one; if that was not enough for p_limit, stopped_at and
-- stopped_id are the place of the last one. Called by list_runs.
create or replace function holdfast._list_ids(
    p_states text[], p_names text[], p_queues text[], p_tags text[], p_key text,
    p_since timestamptz, p_until timestamptz, p_parent_run_id uuid, p_input_contains jsonb,
    p_before_at timestamptz, p_before_id uuid, p_limit int, p_bound int
) returns table (run_ids uuid[], stopped_at timestamptz, stopped_id uuid)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_active constant text[] := array['queued', 'running', 'stuck', 'paused'];
    v_statuses text[] := array(
        select distinct case when s.state = any (v_active || array['waiting']) then 'running'
            else s.state end
        from unnest(coalesce(p_states, array['running', 'completed', 'failed', 'cancelled',
            'timed_out', 'terminated', 'continued'])) as s (state));
    v_candidates uuid[];
    v_filtered boolean;  -- the walk finds runs that do not match
    v_left int := p_bound;
    v_size int := p_limit;
    v_walked uuid[];
begin
    run_ids := '{}';
    if p_key is not null and p_names is not null then
        v_candidates := array(
            select holdfast._run_of_key(holdfast.keyed_run_id(n.name, p_key), n.name, p_key)
            from unnest(p_names) as n (name));
    elsif p_parent_run_id is null and p_states <@ v_active then
        v_candidates := array(select * from holdfast._active_runs(p_states, p_bound));
        if cardinality(v_candidates) > p_bound then
            v_candidates := null;
        end if;
    end if;
    v_filtered := v_candidates is not null or p_parent_run_id is not null
        or p_queues is not null or p_tags is not null or p_key is not null
        or p_input_contains is not null or v_active || array['waiting'] && p_states;
    loop
        if v_filtered then
            v_size := least(greatest(v_size * 4, 200), v_left);
        end if;
        select array_agg(w.run_id order by w.created_at desc, w.run_id desc),
            min(w.created_at), (array_agg(w.run_id order by w.created_at, w.run_id))[1]
        into v_walked, stopped_at, stopped_id
        from holdfast._walk_runs(v_candidates, p_parent_run_id, p_names, v_statuses,
            p_since, p_until, p_before_at, p_before_id, v_size) as w;
        if v_filtered and v_walked is not null then
            run_ids := run_ids || array(select * from holdfast._matching_runs(
                v_walked, p_states, p_names, p_queues, p_tags, p_key, p_parent_run_id,
                p_input_contains, p_limit - cardinality(run_ids)));
        else
            run_ids := coalesce(v_walked, '{}');
        end if;
        if cardinality(run_ids) >= p_limit or coalesce(cardinality(v_walked), 0) < v_size then
            stopped_at := null;
            stopped_id := null;
            exit;
        end if;
        v_left := v_left - v_size;
        exit when v_left <= 0;
        p_before_at := stopped_at;
        p_before_id := stopped_id;
    end loop;
    return next;
end $$;

-- Return runs as get_runs shows them, newest first, that match all of the filters that are not
-- null. If tags, queues, states or an input must be looked for run by run, p_bound runs are looked
-- at. If more may follow, stopped_at and stopped_id are the run after which the next call
-- continues; a list without any run is then one row without a run_id. Called by clients.
create or replace function holdfast.list_runs(
    p_states text[], p_names text[], p_queues text[], p_tags text[], p_key text,
    p_since bigint, p_until bigint, p_parent_run_id uuid, p_input_contains jsonb,
    p_before_at bigint, p_before_id uuid, p_limit int, p_payloads boolean default false,
    p_bound int default 20000
) returns table (
    run_id uuid, name text, version int, key text, queue text, priority int, status text,
    state text, input json, output json, error json, tags text[], headers json,
    retention_seconds float8, created_at bigint, started_at bigint, completed_at bigint,
    deadline_at bigint, visible_at bigint, awaiting text[], worker text, attempts int,
    lease_no int, stuck text, paused boolean, parent_run_id uuid, parent_key text, kind text,
    stopped_at bigint, stopped_id uuid
)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select s.*, holdfast._micros(l.stopped_at), l.stopped_id
    from holdfast._list_ids(p_states, p_names, p_queues, p_tags, p_key,
        holdfast._moment(p_since), holdfast._moment(p_until), p_parent_run_id,
        p_input_contains, holdfast._moment(p_before_at), p_before_id,
        holdfast._limit(p_limit), p_bound) as l
    left join lateral holdfast._show_runs(l.run_ids, p_payloads) as s on true
$$;

-- Return runs whose ids begin alike: between two ids, at most p_limit. Called by clients.
create or replace function holdfast.runs_between(p_first uuid, p_last uuid, p_limit int)
returns setof uuid
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
as $$
begin
    return query
    select r.run_id from holdfast.runs r
    where r.run_id between p_first and p_last order by r.run_id limit p_limit;
end $$;
