-- Lists of runs, newest first. What a list costs does not grow with the number of runs: it starts
-- from the index that leads to the fewest runs. If they can only be found by looking at one run
-- after the other, it looks at a bounded number of them and says how far it came.

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
-- or of the children of p_parent_run_id, or of those that have an attribute, or else of the runs
-- of these names (null: all) and statuses. Called by _list_ids.
create or replace function holdfast._walk_runs(
    p_candidates uuid[], p_parent_run_id uuid, p_names text[], p_statuses text[],
    p_since timestamptz, p_until timestamptz, p_before_at timestamptz, p_before_id uuid,
    p_limit int, p_attribute text, p_value text
) returns table (run_id uuid, created_at timestamptz)
language plpgsql stable
set plan_cache_mode = force_custom_plan
set enable_bitmapscan = off
as $$
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
    elsif p_attribute is not null then
        return query
        select a.run_id, a.created_at
        from holdfast.attributes a
        where a.name = p_attribute and (a.value #>> '{}') = p_value
            and holdfast._is_on_page(
                a.created_at, a.run_id, p_since, p_until, p_before_at, p_before_id)
        order by a.created_at desc, a.run_id desc
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
language plpgsql immutable
as $$
begin
    return p_value::jsonb @> p_pattern;
exception
    when data_exception or program_limit_exceeded then
        return false;
end $$;

-- Return those of some runs, in their order, that match the filters that are not null. Inputs are
-- read last, and only of runs that match all else. They are compared without catching what jsonb
-- cannot hold, which costs more than to compare them; if there is such an input, they are compared
-- again one by one. Called by _list_ids.
create or replace function holdfast._matching_runs(
    p_run_ids uuid[], p_states text[], p_names text[], p_queues text[], p_tags text[],
    p_parent_run_id uuid, p_input_contains jsonb, p_limit int, p_attributes json, p_build text
) returns uuid[]
language plpgsql stable
set plan_cache_mode = force_custom_plan
as $$
declare
    v_one_by_one boolean := false;
begin
    loop
        begin
            return array(
                select m.run_id
                from (
                    select r.run_id, r.input, u.place
                    from unnest(p_run_ids) with ordinality as u (run_id, place)
                    cross join lateral (
                        select * from holdfast.runs r where r.run_id = u.run_id limit 1
                    ) as r
                    left join lateral (
                        select * from holdfast.tasks t
                        where t.run_id = u.run_id and t.key = '' limit 1
                    ) as t on p_states is not null
                    where (p_states is null
                            or case when r.kind = 'flow' and r.status = 'running'
                                then holdfast._flow_state(r.run_id, t.paused)
                                else holdfast._state(r.status, t.worker, t.paused, t.stuck,
                                    coalesce(t.limited_at, t.visible_at))
                            end = any (p_states))
                        and (p_names is null or r.name = any (p_names))
                        and (p_queues is null or r.queue = any (p_queues))
                        and (p_build is null or r.build = p_build)
                        and (p_tags is null or r.tags @> p_tags)
                        and (p_parent_run_id is null or r.parent_run_id = p_parent_run_id)
                        and (p_attributes is null or not exists (
                            select from json_each_text(p_attributes) as k (name, value)
                            where not exists (
                                select from holdfast.attributes a
                                where a.run_id = r.run_id and a.name = k.name
                                    and (a.value #>> '{}') = k.value)))
                    order by u.place
                    offset 0
                ) as m
                where p_input_contains is null
                    or case when v_one_by_one then holdfast._contains(m.input, p_input_contains)
                        else m.input::jsonb @> p_input_contains end
                order by m.place
                limit p_limit);
        exception
            when data_exception or program_limit_exceeded then
                if v_one_by_one then
                    raise;
                end if;
                v_one_by_one := true;
        end;
    end loop;
end $$;

-- Return the runs of a key, of workflows with these names (null: all): those that were started with
-- it, and all that continued or retried one of them. Called by _list_ids.
create or replace function holdfast._runs_of_key(p_names text[], p_key text) returns uuid[]
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    return array(
        with recursive names as (
            (select r.name from holdfast.runs r where p_names is null order by r.name limit 1)
            union all
            select (select r.name from holdfast.runs r where r.name > n.name
                order by r.name limit 1)
            from names n where n.name is not null
        ), chain as (
            select r.*
            from (
                select u.name from unnest(p_names) as u (name)
                union
                select n.name from names n where n.name is not null
            ) as n
            cross join lateral (
                select r.run_id, r.status not in ('running', 'continued') as has_ended,
                    case r.status when 'continued' then (r.output ->> 'run_id')::uuid end as next
                from holdfast.runs r
                where r.run_id = holdfast.keyed_run_id(n.name, p_key)
                limit 1
            ) as r
            union
            select r.run_id, r.status not in ('running', 'continued'),
                case r.status when 'continued' then (r.output ->> 'run_id')::uuid end
            from chain c
            cross join lateral (values
                (c.next, false),
                (case when c.has_ended
                    then holdfast.keyed_run_id('//retry', c.run_id::text) end, false),
                (case when c.has_ended
                    then holdfast.keyed_run_id('run/retry', c.run_id::text) end, true)
            ) as f (run_id, is_former)
            cross join lateral (
                select * from holdfast.runs r where r.run_id = f.run_id limit 1
            ) as r
            where r.key is null or not f.is_former  -- else it is a run of another workflow
        )
        select c.run_id from chain c);
end $$;

-- Return that of some attributes which the fewest runs have; from 1,000 runs on they count alike.
-- It reads an index whatever the planner believes of the table. Called by _list_ids.
create or replace function holdfast._rarest_attribute(
    p_attributes json, out name text, out value text
)
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    select k.name, k.value into name, value
    from json_each_text(p_attributes) as k (name, value)
    order by case when (select count(*) from json_object_keys(p_attributes)) > 1 then (
        select count(*) from (
            select from holdfast.attributes a
            where a.name = k.name and (a.value #>> '{}') = k.value limit 1000
        ) as f) end
    limit 1;
end $$;

-- Return the ids of runs, newest first, that match all of the filters that are not null. At most
-- p_bound runs are looked at one by one, a part at a time, and no further part after p_seconds. If
-- that was not enough for p_limit, stopped_at and stopped_id are the place of the last one. Called
-- by list_runs and count_runs_by.
create or replace function holdfast._list_ids(
    p_states text[], p_names text[], p_queues text[], p_tags text[], p_key text,
    p_since timestamptz, p_until timestamptz, p_parent_run_id uuid, p_input_contains jsonb,
    p_before_at timestamptz, p_before_id uuid, p_limit int, p_bound int, p_seconds float8,
    p_attributes json, p_build text
) returns table (run_ids uuid[], stopped_at timestamptz, stopped_id uuid)
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_first constant int := least(greatest(p_limit * 4, 200), p_bound);
    v_part int := v_first;  -- runs between two looks at the clock
    v_began constant timestamptz := clock_timestamp();
    v_open constant text[] := array['queued', 'running', 'stuck', 'paused', 'waiting'];
    v_statuses text[] := array(
        select distinct case when s.state = any (v_open) then 'running' else s.state end
        from unnest(coalesce(p_states, array['running', 'completed', 'failed', 'cancelled',
            'timed_out', 'terminated', 'continued'])) as s (state));
    v_candidates uuid[];
    v_attribute record;  -- that the fewest runs have
    v_filtered boolean;  -- the walk finds runs that do not match
    v_size int := p_limit;  -- of the walk
    v_walked uuid[];
    v_moments timestamptz[];
    v_count int;
    v_from int;
    v_to int;
    v_looked int := 0;
begin
    run_ids := '{}';
    if p_key is not null then
        v_candidates := holdfast._runs_of_key(p_names, p_key);
    elsif p_parent_run_id is null then
        v_candidates := holdfast._active_candidates(p_states, p_build, p_bound);
    end if;
    select * into v_attribute from holdfast._rarest_attribute(p_attributes);
    v_filtered := v_candidates is not null or p_parent_run_id is not null or p_build is not null
        or p_queues is not null or p_tags is not null or p_attributes is not null
        or p_input_contains is not null or coalesce(v_open && p_states, false);
    if v_candidates is not null then
        v_size := p_bound;  -- they are all looked up and sorted, which is not to be done twice
    elsif v_filtered then
        v_size := v_first;
    end if;
    loop
        select array_agg(w.run_id), array_agg(w.created_at)  -- in the order of the walk
        into v_walked, v_moments
        from holdfast._walk_runs(v_candidates, p_parent_run_id, p_names, v_statuses,
            p_since, p_until, p_before_at, p_before_id, v_size,
            v_attribute.name, v_attribute.value) as w;
        v_count := coalesce(cardinality(v_walked), 0);
        if not v_filtered then
            run_ids := coalesce(v_walked, '{}');
            exit;
        end if;
        v_to := 0;
        while v_to < v_count and cardinality(run_ids) < p_limit loop
            v_from := v_to + 1;
            v_to := least(v_to + v_part, v_count);
            v_part := 500;
            run_ids := run_ids || holdfast._matching_runs(v_walked[v_from:v_to], p_states,
                p_names, p_queues, p_tags, p_parent_run_id, p_input_contains,
                p_limit - cardinality(run_ids), p_attributes, p_build);
            stopped_at := v_moments[v_to];
            stopped_id := v_walked[v_to];
            v_looked := v_looked + v_to - v_from + 1;
            exit when clock_timestamp() >= v_began + p_seconds * interval '1 s';
        end loop;
        if cardinality(run_ids) >= p_limit or v_to = v_count and v_count < v_size then
            stopped_at := null;  -- the page is full, or nothing follows
            stopped_id := null;
            exit;
        end if;
        exit when v_looked >= p_bound
            or clock_timestamp() >= v_began + p_seconds * interval '1 s';
        p_before_at := stopped_at;
        p_before_id := stopped_id;
        v_size := p_bound - v_looked;
    end loop;
    return next;
end $$;

-- Return runs as get_runs shows them, newest first, that match all of the filters that are not
-- null. p_attributes is an object: runs have all of its names, with values of the same texts. If
-- tags, queues, builds, states or an input must be looked for run by run, p_bound runs are looked
-- at, and fewer if that takes p_seconds (null: any time), as with large inputs. If more may follow,
-- stopped_at and stopped_id are the run after which the next call continues; a list without any run
-- is then one row without a run_id. Called by clients.
create or replace function holdfast.list_runs(
    p_states text[], p_names text[], p_queues text[], p_tags text[], p_key text,
    p_since bigint, p_until bigint, p_parent_run_id uuid, p_input_contains jsonb,
    p_before_at bigint, p_before_id uuid, p_limit int, p_payloads boolean default false,
    p_attributes json default null, p_build text default null, p_bound int default 5000,
    p_seconds float8 default 0.02
) returns table (
    run_id uuid, name text, version int, key text, queue text, priority int, status text,
    state text, input json, output json, error json, tags text[], headers json,
    retention_seconds float8, created_at bigint, started_at bigint, completed_at bigint,
    deadline_at bigint, visible_at bigint, awaiting text[], worker text, attempts int,
    lease_no int, stuck text, paused boolean, parent_run_id uuid, parent_key text, kind text,
    due_at bigint, attributes json, build text, last_failure json, stopped_at bigint,
    stopped_id uuid
)
language sql stable
as $$
    select s.*, holdfast._micros(l.stopped_at), l.stopped_id
    from holdfast._list_ids(p_states, p_names, p_queues, p_tags, p_key,
        holdfast._moment(holdfast._check_moment('the first moment', p_since)),
        holdfast._moment(holdfast._check_moment('the last moment', p_until)), p_parent_run_id,
        p_input_contains, holdfast._moment(holdfast._check_moment('the place', p_before_at)),
        p_before_id,
        holdfast._limit(p_limit), p_bound, p_seconds, p_attributes, p_build) as l
    left join lateral holdfast.get_runs(l.run_ids, p_payloads) as s on true
$$;

-- Return runs whose ids begin alike: between two ids, at most p_limit. Called by clients.
create or replace function holdfast.runs_between(p_first uuid, p_last uuid, p_limit int)
returns setof uuid
language plpgsql stable
set plan_cache_mode = force_custom_plan
as $$
begin
    return query
    select r.run_id from holdfast.runs r
    where r.run_id between p_first and p_last order by r.run_id limit p_limit;
end $$;
