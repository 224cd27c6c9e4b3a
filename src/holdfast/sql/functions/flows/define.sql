-- Define flows from SQL: a flow, and its steps one after the other. Workers define theirs with
-- ensure_flow.

-- Refuse a name that no step of a flow can have (22023), and a null (22004). Called by add_step,
-- _check_step_shape and _task_key.
create or replace function holdfast._check_slug(p_slug text) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('the slug of a step', p_slug is not null);
    if not holdfast._is_slug(p_slug) then
        raise invalid_parameter_value using message = format(
            '%s cannot be the slug of a step: it takes a letter or "_", then up to 127 letters, '
            'digits or "_", and "run" is reserved', quote_literal(left(p_slug, 200)));
    end if;
end $$;

-- Return the handler of the newest shape of a flow; null if there is none. A slug without an app
-- is also that of the only app that has such a flow. Refuses a slug that flows of several apps have
-- (22023). Called by all that need the newest version of a flow.
create or replace function holdfast._newest_shape(p_flow_slug text) returns text
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_slugs text[] := array[p_flow_slug];
begin
    if strpos(p_flow_slug, '/') = 0
        and not exists (select from holdfast.flows f where f.flow_slug = p_flow_slug)
    then
        v_slugs := array(
            select distinct f.flow_slug from holdfast.flows f
            where split_part(f.flow_slug, '/', 2) = p_flow_slug order by 1);
        if cardinality(v_slugs) > 1 then
            raise invalid_parameter_value using
                message = format('flow %s is in several apps: %s', p_flow_slug,
                    array_to_string(v_slugs, ', ')),
                hint = 'name the app as well: APP/' || p_flow_slug;
        end if;
    end if;
    return (
        select f.handler from holdfast.flows f where f.flow_slug = v_slugs[1]
        order by f.version desc limit 1);
end $$;

-- Return the whole name of a flow: with its app if only one app has a flow of this name. Refuses
-- what _newest_shape does. Called by all that take the slugs that people write.
create or replace function holdfast._full_slug(p_flow_slug text) returns text
language sql stable
as $$
    select case when strpos(p_flow_slug, '/') > 0 then p_flow_slug
        else coalesce(regexp_replace(
            holdfast._newest_shape(p_flow_slug), '@[0-9]+$', ''), p_flow_slug) end
$$;

-- Refuse a name that no flow can have (22023), and a null (22004). Called by all that define flows.
create or replace function holdfast._check_flow(p_flow_slug text) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('the slug of a flow', p_flow_slug is not null);
    if not holdfast._is_flow(p_flow_slug) then
        raise invalid_parameter_value using message = format(
            '%s cannot be the slug of a flow: it takes a letter or "_", then up to 127 letters, '
            'digits or "_"', quote_literal(left(p_flow_slug, 200)));
    end if;
end $$;

-- Keep other sessions from defining versions of a flow until the transaction ends. Starts do not
-- wait for it. Locks: the flow's versions. Called by all that define shapes.
create or replace function holdfast._lock_versions(p_flow_slug text) returns void
language sql
as $$
    select pg_advisory_xact_lock(hashtext('holdfast.flow_versions'), hashtext(p_flow_slug))
$$;

-- Keep other sessions from starting runs of a flow until the transaction ends, and wait for
-- transactions that have started some. Starts that come meanwhile wait as well, so it is taken only
-- by those that change or delete a shape which runs may begin with.
-- Locks: the flow's starts; expects the flow's versions locked. Called by add_step,
-- delete_flow, _clear_flow and _stop_flow.
create or replace function holdfast._block_starts(p_flow_slug text) returns void
language sql
as $$
    select pg_advisory_xact_lock(hashtext('holdfast.flow'), hashtext(p_flow_slug))
$$;

-- Create a flow; one that exists is returned as it is, in its newest shape. The times are seconds.
-- Refuses values that are not allowed (22004, 22023). Locks: the flow's versions. Called by users.
create or replace function holdfast.create_flow(
    flow_slug text, max_attempts int default null, base_delay int default null,
    timeout int default null
) returns holdfast.flows
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
#variable_conflict use_column
declare
    v_flow holdfast.flows;
begin
    perform holdfast._check_flow(create_flow.flow_slug);
    perform holdfast._check_options(max_attempts, base_delay, timeout, null);
    perform holdfast._lock_versions(holdfast._full_slug(create_flow.flow_slug));
    select f.* into v_flow from holdfast.flows f
    where f.handler = holdfast._newest_shape(create_flow.flow_slug);
    if found then
        return v_flow;
    end if;
    insert into holdfast.flows (handler, flow_slug, version, opt_max_attempts, opt_base_delay,
        opt_timeout, created_at)
    values (create_flow.flow_slug || '@1', create_flow.flow_slug, 1, coalesce(max_attempts, 3),
        coalesce(base_delay, 5), coalesce(timeout, 60), holdfast.now())
    returning * into v_flow;
    insert into holdfast.steps (handler, step_slug, step_index, step_type)
    values (v_flow.handler, '', -1, 'end');
    return v_flow;
end $$;

-- Refuse options of flows and steps that are not allowed (22023); a null is. Called by create_flow,
-- add_step, _check_shape and _check_step_shape.
create or replace function holdfast._check_options(
    p_max_attempts int, p_base_delay int, p_timeout int, p_start_delay int
) returns void
language plpgsql immutable
as $$
begin
    if p_max_attempts < 1 then
        raise invalid_parameter_value using message = format(
            'max_attempts is 1 or more, not %s', p_max_attempts);
    end if;
    perform holdfast._check_seconds('base_delay', p_base_delay);
    perform holdfast._check_seconds('start_delay', p_start_delay);
    if p_timeout <= 0 then
        raise invalid_parameter_value using message = format(
            'a timeout is 1 second or more, not %s', p_timeout);
    end if;
end $$;

-- Add a step after its dependencies, or return it if the newest shape has it. A shape that has had
-- a run stays as it is: the next version begins with a copy of it. The times are seconds. Refuses
-- an unknown flow or dependency (HF003) and values that are not allowed (22004, 22023).
-- Locks: the flow's versions; its starts, if the shape has had no run. Called by users.
create or replace function holdfast.add_step(
    flow_slug text, step_slug text, deps_slugs text[] default '{}', max_attempts int default null,
    base_delay int default null, timeout int default null, start_delay int default null,
    step_type text default 'single', required_input_pattern jsonb default null,
    forbidden_input_pattern jsonb default null, when_unmet text default 'skip',
    when_exhausted text default 'fail', trigger_rule text default 'none_failed',
    tolerated_count int default null, tolerated_percent int default null,
    concurrency int default null, jitter_percent int default null
) returns holdfast.steps
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
#variable_conflict use_column
declare
    v_handler text;
    v_step holdfast.steps;
    v_deps text[] := array(select distinct unnest(deps_slugs));
begin
    perform holdfast._check_given('the slug of a flow', add_step.flow_slug is not null);
    perform holdfast._check_slug(add_step.step_slug);
    perform holdfast._check_options(max_attempts, base_delay, timeout, start_delay);
    perform holdfast._check_step(add_step.step_slug, add_step.step_type, v_deps,
        add_step.required_input_pattern, add_step.forbidden_input_pattern, add_step.when_unmet,
        add_step.when_exhausted, add_step.trigger_rule);
    perform holdfast._check_map(add_step.step_slug, add_step.step_type, add_step.tolerated_count,
        add_step.tolerated_percent, concurrency);
    perform holdfast._check_jitter(add_step.step_slug, jitter_percent);
    perform holdfast._lock_versions(holdfast._full_slug(add_step.flow_slug));
    v_handler := holdfast._newest_shape(add_step.flow_slug);
    if v_handler is null then
        raise sqlstate 'HF003' using message = format('flow %s does not exist', add_step.flow_slug);
    end if;
    select s.* into v_step from holdfast.steps s
    where s.handler = v_handler and s.step_slug = add_step.step_slug;
    if found then
        return v_step;
    end if;
    perform holdfast._check_deps(v_handler, add_step.step_slug, v_deps);
    if add_step.trigger_rule = 'always' and not exists (
        select from holdfast.steps s
        where s.handler = v_handler and s.step_slug <> '' and s.trigger_rule <> 'always')
    then
        raise invalid_parameter_value using message = format(
            'step %s always runs at the end: add a step that comes before it', add_step.step_slug);
    end if;
    if not holdfast._has_runs(v_handler) then
        perform holdfast._block_starts(regexp_replace(v_handler, '@[0-9]+$', ''));
    end if;
    if holdfast._has_runs(v_handler) then
        v_handler := holdfast._copy_shape(v_handler);
    end if;
    insert into holdfast.steps (handler, step_slug, step_index, step_type, deps_count,
        opt_max_attempts, opt_base_delay, opt_timeout, opt_start_delay, required_input_pattern,
        forbidden_input_pattern, when_unmet, when_exhausted, trigger_rule, tolerated_count,
        tolerated_percent, opt_concurrency, opt_jitter)
    select v_handler, add_step.step_slug, max(s.step_index) + 1, add_step.step_type,
        cardinality(v_deps), max_attempts, base_delay, timeout, start_delay,
        add_step.required_input_pattern, add_step.forbidden_input_pattern, add_step.when_unmet,
        add_step.when_exhausted, add_step.trigger_rule, add_step.tolerated_count,
        add_step.tolerated_percent, concurrency, jitter_percent
    from holdfast.steps s where s.handler = v_handler
    returning * into v_step;
    insert into holdfast.deps (handler, dep_slug, step_slug)
    select v_handler, d.slug, add_step.step_slug from unnest(v_deps) as d (slug);
    perform holdfast._connect_end(v_handler);
    return v_step;
end $$;

-- Refuse what a step can never be (22004, 22023). Called by add_step and _check_step_shape.
create or replace function holdfast._check_step(
    p_step text, p_type text, p_deps text[], p_required jsonb, p_forbidden jsonb,
    p_when_unmet text, p_when_exhausted text, p_trigger_rule text
) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('a dependency', (
        select count(*) = count(u.slug) from unnest(p_deps) as u (slug)));
    if p_type is null or p_type not in ('single', 'map') then
        raise invalid_parameter_value using message = format(
            'a step is single or map, not %s', coalesce(quote_literal(left(p_type, 200)), 'null'));
    end if;
    if p_type = 'map' and cardinality(p_deps) > 1 then
        raise invalid_parameter_value using message = format(
            'map step %s takes its elements from one step, not from %s: %s', p_step,
            cardinality(p_deps), array_to_string(p_deps, ', '));
    end if;
    if coalesce(jsonb_typeof(p_required), 'object') <> 'object'
        or coalesce(jsonb_typeof(p_forbidden), 'object') <> 'object'
    then
        raise invalid_parameter_value using message = format(
            'the patterns of step %s are JSON objects', p_step);
    end if;
    if p_when_unmet is null or p_when_unmet not in ('fail', 'skip', 'skip-cascade')
        or p_when_exhausted is null or p_when_exhausted not in ('fail', 'skip', 'skip-cascade')
    then
        raise invalid_parameter_value using message = format(
            'when_unmet and when_exhausted of step %s are fail, skip or skip-cascade', p_step);
    end if;
    perform holdfast._check_rule(p_step, p_type, p_deps, num_nonnulls(p_required, p_forbidden) > 0,
        p_when_unmet, p_trigger_rule);
end $$;

-- Refuse dependencies that the shape does not have (HF003), or that always run at the end (22023).
-- Called by add_step.
create or replace function holdfast._check_deps(p_handler text, p_step text, p_deps text[])
returns void
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_missing text;
begin
    select d.slug into v_missing from unnest(p_deps) as d (slug)
    where d.slug = '' or not exists (
        select from holdfast.steps s where s.handler = p_handler and s.step_slug = d.slug)
    order by d.slug limit 1;
    if found then
        raise sqlstate 'HF003' using message = format(
            'step %s depends on %s, which flow %s does not have: add that first', p_step,
            coalesce(nullif(v_missing, ''), '''''') , p_handler);
    end if;
    select d.slug into v_missing from unnest(p_deps) as d (slug)
    cross join lateral (
        select s.trigger_rule from holdfast.steps s
        where s.handler = p_handler and s.step_slug = d.slug limit 1
    ) as s
    where s.trigger_rule = 'always' order by d.slug limit 1;
    if found then
        raise invalid_parameter_value using message = format(
            'step %s depends on %s, which always runs at the end: no step comes after it', p_step,
            v_missing);
    end if;
end $$;

-- Return true if a shape has had runs, so that nothing is added to it. A start marks the shape
-- unless another transaction is about to do so; if that one is rolled back, the run itself tells. A
-- run that waited for the shape may have an earlier moment, by no more than an hour. Called by
-- add_step.
create or replace function holdfast._has_runs(p_handler text) returns boolean
language plpgsql
as $$
begin
    return (
        select f.is_sealed or exists (
            select from unnest(array['running', 'completed', 'failed', 'cancelled', 'timed_out',
                'terminated']) as s (status)
            cross join lateral (
                select r.run_id from holdfast.runs r
                where r.name = f.flow_slug and r.status = s.status
                    and r.created_at > f.created_at - interval '1 hour'
                    and r.version = f.version and r.kind = 'flow'
                limit 1
            ) as r)
        from holdfast.flows f where f.handler = p_handler);
end $$;

-- Begin the next version of a flow with a copy of a shape. Returns its handler. Called by add_step.
create or replace function holdfast._copy_shape(p_handler text) returns text
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_new text;
begin
    insert into holdfast.flows (handler, flow_slug, version, queue, opt_max_attempts,
        opt_base_delay, opt_timeout, created_at)
    select f.flow_slug || '@' || f.version + 1, f.flow_slug, f.version + 1, f.queue,
        f.opt_max_attempts, f.opt_base_delay, f.opt_timeout, holdfast.now()
    from holdfast.flows f where f.handler = p_handler
    returning handler into v_new;
    insert into holdfast.steps
    select (jsonb_populate_record(s, jsonb_build_object('handler', v_new))).*
    from holdfast.steps s where s.handler = p_handler;
    insert into holdfast.deps (handler, dep_slug, step_slug, is_implied)
    select v_new, d.dep_slug, d.step_slug, d.is_implied from holdfast.deps d
    where d.handler = p_handler;
    return v_new;
end $$;

-- Have the end of a shape depend on its leaves, and on the steps that always run; have these depend
-- on all leaves. If a step has another trigger rule than none_failed, the end has one_failed.
-- Called by all that change shapes.
create or replace function holdfast._connect_end(p_handler text) returns void
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    delete from holdfast.deps d
    where d.handler = p_handler and (d.step_slug = '' or d.is_implied);
    insert into holdfast.deps (handler, dep_slug, step_slug)
    select p_handler, s.step_slug, '' from holdfast.steps s
    where s.handler = p_handler and s.step_slug <> '' and s.trigger_rule <> 'always'
        and not exists (
            select from (
                select d.step_slug from holdfast.deps d
                where d.handler = p_handler and d.dep_slug = s.step_slug offset 0
            ) as d
            cross join lateral (
                select t.trigger_rule from holdfast.steps t
                where t.handler = p_handler and t.step_slug = d.step_slug limit 1
            ) as t
            where t.trigger_rule <> 'always');
    insert into holdfast.deps (handler, dep_slug, step_slug, is_implied)
    select p_handler, u.dep_slug, u.step_slug, true
    from holdfast.steps s
    cross join lateral (
        select d.dep_slug, s.step_slug from holdfast.deps d
        where d.handler = p_handler and d.step_slug = ''
        union all
        select s.step_slug, ''
    ) as u
    where s.handler = p_handler and s.trigger_rule = 'always'
    on conflict do nothing;
    update holdfast.steps s
    set deps_count = (
            select count(*) from holdfast.deps d
            where d.handler = p_handler and d.step_slug = s.step_slug),
        trigger_rule = case when s.step_slug <> '' then s.trigger_rule
            when exists (
                select from holdfast.steps t
                where t.handler = p_handler and t.step_slug <> ''
                    and t.trigger_rule <> 'none_failed')
            then 'one_failed' else 'none_failed' end
    where s.handler = p_handler and (s.step_slug = '' or s.trigger_rule = 'always');
end $$;
