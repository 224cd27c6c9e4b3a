-- Shapes as JSON: what workers compare with their code when they start, and what clients read.
--
-- A shape is an object: name, version, queue, max_attempts, base_delay, timeout (seconds) and
-- steps, an array in which each step stands after those that it depends on. A step has slug, kind
-- (single or map), deps, wants_run, queue, max_attempts, base_delay, timeout, start_delay, required
-- and forbidden (texts of JSON objects), when_unmet, when_exhausted, trigger_rule and
-- jitter_percent; a map tolerated_count, tolerated_percent and concurrency. What is absent or null
-- has its default: of a step, the flow's.

-- Make the database's shape of a version that of the code, unless it has another. 'verified': it
-- has the same, by the hash or, with another hash or none, by the contents; this hash is kept then,
-- and which steps want `run`.
-- 'compiled': it had none. 'mismatch': it has another, `other`, and nothing was changed.
-- 'replaced': with p_replace, another shape, `other`, was replaced, and its `ended` open runs were
-- terminated. It is kept while there are runs of it.
-- Refuses shapes that cannot be (22004, 22023), unless the hash is the one that is known.
-- Locks: nothing if the hash is known; else the flow's versions. To replace, the flow's starts as
-- well, then as terminate_runs. Called by workers.
create or replace function holdfast.ensure_flow(
    p_flow_slug text, p_version int, p_hash text, p_shape jsonb, p_replace boolean default false,
    out status text, out other jsonb, out ended int, out notices text[]
)
language plpgsql
as $$
declare
    v_handler text := p_flow_slug || '@' || p_version;
    v_hash text := (select f.shape_hash from holdfast.flows f where f.handler = v_handler);
begin
    ended := 0;
    if v_hash = p_hash then
        status := 'verified';
        return;
    end if;
    perform holdfast._check_shape(p_flow_slug, p_version, p_hash, p_shape);
    perform holdfast._lock_versions(p_flow_slug);
    status := holdfast._compare_shape(v_handler, p_hash, p_shape);
    case status
        when 'missing' then
            perform holdfast._write_shape(
                p_flow_slug, p_version, p_hash, p_shape, holdfast.now());
            status := 'compiled';
        when 'alike' then
            update holdfast.steps s set wants_run = w.wants_run
            from holdfast._steps_of(p_shape) as w
            where s.handler = v_handler and s.step_slug = w.slug
                and s.wants_run <> w.wants_run;
            update holdfast.flows f set shape_hash = p_hash, is_sealed = true
            where f.handler = v_handler;
            status := 'verified';
        when 'mismatch' then
            other := holdfast._shape(v_handler);
            if p_replace then
                select t.ended, t.notices into ended, notices
                from holdfast._stop_flow(p_flow_slug, p_version, 'its shape was replaced',
                    p_hash => p_hash, p_shape => p_shape) as t;
                status := 'replaced';
            end if;
        else null;
    end case;
end $$;

-- Return how the database's shape of a version is to another: 'missing', 'verified' by the hash,
-- 'alike' by the contents, or 'mismatch'. The order of steps and of dependencies does not matter.
-- One that was made from SQL gives `run` to each step, whether it wants it or not. Called by
-- ensure_flow.
create or replace function holdfast._compare_shape(p_handler text, p_hash text, p_shape jsonb)
returns text
language plpgsql
as $$
declare
    v_flow holdfast.flows;
begin
    select f.* into v_flow from holdfast.flows f where f.handler = p_handler;
    return case
        when v_flow.handler is null then 'missing'
        when v_flow.shape_hash = p_hash then 'verified'
        when holdfast._normal_shape(p_shape, v_flow.shape_hash is not null)
            = holdfast._normal_shape(holdfast._shape(p_handler), v_flow.shape_hash is not null)
        then 'alike'
        else 'mismatch' end;
end $$;

-- Return a shape with all its defaults, its steps by slug, so that two can be compared. Without
-- p_is_from_code, what steps want of the run is left out. Called by _compare_shape.
create or replace function holdfast._normal_shape(p_shape jsonb, p_is_from_code boolean)
returns jsonb
language sql immutable
as $$
    select '{"queue": "default", "max_attempts": 3, "base_delay": 5, "timeout": 60}'::jsonb
        || jsonb_strip_nulls(p_shape - '{name,version,steps}'::text[])
        || jsonb_build_object('steps', (
            select jsonb_object_agg(s.step ->> 'slug',
                '{"kind": "single", "when_unmet": "skip", "when_exhausted": "fail",
                    "trigger_rule": "none_failed"}'::jsonb
                || jsonb_strip_nulls(s.step - '{deps,wants_run,required,forbidden}'::text[])
                || jsonb_build_object(
                    'wants_run', p_is_from_code and coalesce(
                        (s.step -> 'wants_run')::text = 'true', false),
                    'deps', (
                        select jsonb_agg(d.slug order by d.slug)
                        from jsonb_array_elements_text(
                            coalesce(nullif(s.step -> 'deps', 'null'), '[]')) as d (slug)),
                    'required', (s.step ->> 'required')::jsonb,
                    'forbidden', (s.step ->> 'forbidden')::jsonb))
            from jsonb_array_elements(coalesce(p_shape -> 'steps', '[]')) as s (step)))
$$;

-- Return a shape as JSON, null if there is none. Called by ensure_flow, _replace_shape, _shape_had
-- and _compare_shape.
create or replace function holdfast._shape(p_handler text) returns jsonb
language plpgsql stable
as $$
begin
    return (
        select jsonb_build_object('name', f.flow_slug, 'version', f.version, 'queue', f.queue,
            'max_attempts', f.opt_max_attempts, 'base_delay', f.opt_base_delay,
            'timeout', f.opt_timeout, 'steps', coalesce((
                select jsonb_agg(jsonb_build_object('slug', s.step_slug, 'kind', s.step_type,
                    'deps', array(
                        select d.dep_slug from (  -- the order must not choose the index
                            select d.dep_slug from holdfast.deps d
                            where d.handler = p_handler and d.step_slug = s.step_slug
                                and not d.is_implied
                            offset 0
                        ) as d
                        order by d.dep_slug),
                    'wants_run', s.wants_run, 'queue', s.queue,
                    'max_attempts', s.opt_max_attempts, 'base_delay', s.opt_base_delay,
                    'timeout', s.opt_timeout, 'start_delay', s.opt_start_delay,
                    'required', s.required_input_pattern::text,
                    'forbidden', s.forbidden_input_pattern::text,
                    'when_unmet', s.when_unmet, 'when_exhausted', s.when_exhausted,
                    'runs', s.runs, 'runs_kind', s.runs_kind,
                    'trigger_rule', s.trigger_rule, 'tolerated_count', s.tolerated_count,
                    'tolerated_percent', s.tolerated_percent, 'concurrency', s.opt_concurrency,
                    'jitter_percent', s.opt_jitter)
                    order by s.step_index, s.step_slug)
                from holdfast.steps s
                where s.handler = p_handler and s.step_slug <> ''), '[]'))
        from holdfast.flows f where f.handler = p_handler);
end $$;

-- Return the shape that an ended run had which was created at p_created_at: another one may have
-- replaced it since. With a null it is the present shape. Returns null if there is none. Called by
-- get_flow, export_runs and restore_run.
create or replace function holdfast._shape_had(p_handler text, p_created_at timestamptz)
returns jsonb
language plpgsql stable
as $$
begin
    return coalesce((
        select x.shape from holdfast.replaced_shapes x
        where x.handler = p_handler and x.replaced_at > p_created_at
        order by x.replaced_at limit 1), holdfast._shape(p_handler));
end $$;

-- Return a version of a flow as JSON, by default the newest; null if there is none. With
-- p_created_at, the shape that an ended run had which was created then. The slug may leave out the
-- app if only one app has such a flow; otherwise that is refused (22023). Called by clients.
create or replace function holdfast.get_flow(
    p_flow_slug text, p_version int default null, p_created_at bigint default null
) returns jsonb
language sql stable
as $$
    select holdfast._shape_had(case when p_version is null
        then holdfast._newest_shape(p_flow_slug)
        else holdfast._full_slug(p_flow_slug) || '@' || p_version end,
        holdfast._moment(holdfast._check_moment('a creation', p_created_at)))
$$;

-- Return all versions of all flows, by name and version. open_runs counts the runs that have not
-- ended; of each flow it looks at the newest 10,000 of these, so that the answer takes little time
-- whatever has been started. Called by clients.
create or replace function holdfast.list_flows() returns table (
    flow_slug text, version int, steps int, from_code boolean, created_at bigint, open_runs int
)
language plpgsql stable
as $$
declare
    v_running constant text := 'running';
begin
    return query
    with open as materialized (
        select n.flow_slug, r.version, count(*)::int as runs
        from (select distinct f.flow_slug from holdfast.flows f) as n
        cross join lateral (
            select r.version, r.kind from holdfast.runs r
            where r.name = n.flow_slug and r.status = v_running
            order by r.created_at desc, r.run_id desc limit 10000
        ) as r
        where r.kind = 'flow'
        group by n.flow_slug, r.version
    )
    select f.flow_slug, f.version, (
            select count(*)::int from holdfast.steps s
            where s.handler = f.handler and s.step_slug <> ''),
        f.shape_hash is not null, holdfast._micros(f.created_at), coalesce(o.runs, 0)
    from holdfast.flows f
    left join open o on o.flow_slug = f.flow_slug and o.version = f.version
    order by f.flow_slug, f.version;
end $$;

-- Write a shape that was checked. Nothing is added to it later: add_step begins the next version.
-- Locks: expects the flow's versions locked. Called by ensure_flow and _replace_shape.
create or replace function holdfast._write_shape(
    p_flow_slug text, p_version int, p_hash text, p_shape jsonb, p_now timestamptz
) returns void
language plpgsql
as $$
declare
    v_handler text := p_flow_slug || '@' || p_version;
begin
    insert into holdfast.flows (handler, flow_slug, version, shape_hash, is_sealed, queue,
        opt_max_attempts, opt_base_delay, opt_timeout, created_at)
    values (v_handler, p_flow_slug, p_version, p_hash, true,
        coalesce(p_shape ->> 'queue', 'default'), coalesce((p_shape ->> 'max_attempts')::int, 3),
        coalesce((p_shape ->> 'base_delay')::int, 5), coalesce((p_shape ->> 'timeout')::int, 60),
        p_now);
    insert into holdfast.steps (handler, step_slug, step_index, step_type, deps_count, wants_run,
        queue, opt_max_attempts, opt_base_delay, opt_timeout, opt_start_delay,
        required_input_pattern, forbidden_input_pattern, when_unmet, when_exhausted, runs,
        runs_kind, trigger_rule, tolerated_count, tolerated_percent, opt_concurrency, opt_jitter)
    select v_handler, s.slug, s.place - 1, s.kind, cardinality(s.deps), s.wants_run, s.queue,
        s.max_attempts, s.base_delay, s.timeout, s.start_delay, s.required, s.forbidden,
        s.when_unmet, s.when_exhausted, s.runs, s.runs_kind, s.trigger_rule,
        s.tolerated_count, s.tolerated_percent, s.concurrency, s.jitter_percent
    from holdfast._steps_of(p_shape) as s
    union all
    select v_handler, '', -1, 'end', 0, true, null, null, null, null, null, null, null, 'skip',
        'fail', null, null, 'none_failed', null, null, null, null;
    insert into holdfast.deps (handler, dep_slug, step_slug)
    select v_handler, d.slug, s.slug
    from holdfast._steps_of(p_shape) as s cross join unnest(s.deps) as d (slug);
    perform holdfast._connect_end(v_handler);
end $$;

-- Replace a shape by another that was checked, and keep it for the runs that have it. Locks:
-- expects the flow's versions and starts locked. Called by _stop_flow.
create or replace function holdfast._replace_shape(
    p_flow_slug text, p_version int, p_hash text, p_shape jsonb
) returns void
language plpgsql
as $$
declare
    v_handler text := p_flow_slug || '@' || p_version;
    v_from timestamptz := greatest(holdfast._after_starts(p_flow_slug), (
        select f.created_at + interval '1 microsecond' from holdfast.flows f
        where f.handler = v_handler));  -- this may have waited for the last replacement
begin
    insert into holdfast.replaced_shapes (handler, replaced_at, shape)
    values (v_handler, v_from, holdfast._shape(v_handler))
    on conflict do nothing;  -- of a restored run, which is as young
    delete from holdfast.replaced_shapes x
    where x.handler = v_handler and not exists (
        select from holdfast.runs r
        where r.name = p_flow_slug and r.version = p_version and r.created_at < x.replaced_at);
    perform holdfast._delete_shape(v_handler);
    perform holdfast._write_shape(p_flow_slug, p_version, p_hash, p_shape, v_from);
end $$;

-- Delete a shape. Locks: expects the flow's versions and starts locked. Called by _replace_shape
-- and delete_flow.
create or replace function holdfast._delete_shape(p_handler text) returns void
language sql
as $$
    delete from holdfast.deps d where d.handler = p_handler;
    delete from holdfast.steps s where s.handler = p_handler;
    delete from holdfast.flows f where f.handler = p_handler;
$$;

-- Keep other sessions from starting runs of a flow, and terminate the open runs of a version, null
-- for all of them, at most p_limit. Returns how many were ended, and (topic, payload) notices. With
-- a shape, it replaces that of the version before: other flows, of which these runs are steps, may
-- start more of them, which have it.
--
-- A transaction that starts the flow as a step of another one has locked turns before. So this one
-- never waits for a turn while it has the flow's starts: after 50 ms it lets both go, and tries
-- again. Raises 55P03 if that does not succeed for a minute; at once if the caller has a limit for
-- locks, because it tries again itself.
-- Locks: the flow's starts; as terminate_runs, without waiting long. Called by ensure_flow and
-- _clear_flow.
create or replace function holdfast._stop_flow(
    p_flow_slug text, p_version int, p_reason text, p_limit int default null,
    p_hash text default null, p_shape jsonb default null, out ended int, out notices text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_until timestamptz := clock_timestamp() + case current_setting('lock_timeout')
        when '0' then interval '1 minute' else '0' end;
begin
    loop
        begin
            perform holdfast._block_starts(p_flow_slug);
            if p_shape is not null then
                perform holdfast._replace_shape(p_flow_slug, p_version, p_hash, p_shape);
            end if;
            select t.ended, t.notices into ended, notices
            from holdfast._terminate_flow(p_flow_slug, p_version, p_reason, p_limit) as t;
            return;
        exception when lock_not_available then
            if clock_timestamp() > v_until then
                raise;
            end if;
        end;
        perform pg_sleep(0.02 + 0.03 * random());
    end loop;
end $$;

-- Terminate the open runs of a version of a flow, null for all, at most p_limit. Returns how many
-- were ended, and (topic, payload) notices. Raises 55P03 if it has to wait.
-- Locks: expects the flow's starts locked; as terminate_runs. Called by _stop_flow.
create or replace function holdfast._terminate_flow(
    p_flow_slug text, p_version int, p_reason text, p_limit int,
    out ended int, out notices text[]
)
language plpgsql
set lock_timeout = '50ms'
as $$
declare
    v_running constant text := 'running';
begin
    select coalesce(cardinality(array_positions(t.outcomes, 'delivered')), 0), t.notices
    into ended, notices
    from holdfast.terminate_runs(array(
        select r.run_id from holdfast.runs r
        where r.name = p_flow_slug and r.status = v_running and r.kind = 'flow'
            and (p_version is null or r.version = p_version)
        limit p_limit), p_reason) as t;
end $$;

-- Return a moment, now or later, that is after the starts of all runs of a flow: the caller may
-- have waited for some. Locks: expects the flow's starts locked. Called by _replace_shape and
-- delete_flow.
create or replace function holdfast._after_starts(p_flow_slug text) returns timestamptz
language plpgsql
as $$
begin
    return greatest(holdfast.now(), max(r.created_at) + interval '1 microsecond')
    from unnest(array['running', 'completed', 'failed', 'cancelled', 'timed_out', 'terminated'])
        as s (status)
    cross join lateral (
        select r.created_at from holdfast.runs r
        where r.name = p_flow_slug and r.status = s.status
        order by r.created_at desc limit 1
    ) as r;
end $$;

-- Return the steps of a shape that was checked, with their defaults. Called by ensure_flow and
-- _write_shape.
create or replace function holdfast._steps_of(p_shape jsonb) returns table (
    place int, slug text, kind text, deps text[], wants_run boolean, queue text, max_attempts int,
    base_delay int, timeout int, start_delay int, required jsonb, forbidden jsonb,
    when_unmet text, when_exhausted text, runs text, runs_kind text, trigger_rule text,
    tolerated_count int, tolerated_percent int, concurrency int, jitter_percent int
)
language sql immutable
as $$
    select u.place::int, s.slug, coalesce(s.kind, 'single'), coalesce(s.deps, '{}'),
        coalesce(s.wants_run, false), s.queue, s.max_attempts, s.base_delay, s.timeout,
        s.start_delay, s.required::jsonb, s.forbidden::jsonb, coalesce(s.when_unmet, 'skip'),
        coalesce(s.when_exhausted, 'fail'), s.runs, s.runs_kind,
        coalesce(s.trigger_rule, 'none_failed'), s.tolerated_count, s.tolerated_percent,
        s.concurrency, s.jitter_percent
    from jsonb_array_elements(coalesce(nullif(p_shape -> 'steps', 'null'), '[]'))
        with ordinality as u (step, place)
    cross join lateral jsonb_to_record(u.step) as s (
        slug text, kind text, deps text[], wants_run boolean, queue text, max_attempts int,
        base_delay int, timeout int, start_delay int, required text, forbidden text,
        when_unmet text, when_exhausted text, runs text, runs_kind text, trigger_rule text,
        tolerated_count int, tolerated_percent int, concurrency int, jitter_percent int)
$$;
