-- What is refused of a shape as JSON, and of steps. The fields that a shape may have are in
-- shapes.sql.

-- Refuse a shape that cannot be, with the name, version and hash that are given with it (22004,
-- 22023). Called by ensure_flow.
create or replace function holdfast._check_shape(
    p_flow_slug text, p_version int, p_hash text, p_shape jsonb
) returns void
language plpgsql immutable
as $$
declare
    v_steps jsonb := coalesce(nullif(p_shape -> 'steps', 'null'), '[]');
begin
    perform holdfast._check_flow(p_flow_slug);
    perform holdfast._check_given('the version', p_version is not null);
    perform holdfast._check_version(p_version);
    perform holdfast._check_given('the hash', p_hash is not null);
    perform holdfast._check_id('the hash', p_hash);
    perform holdfast._check_given('the shape', p_shape is not null);
    perform holdfast._check_fields('the shape', p_shape, '{
        "name": "string", "version": "number", "queue": "string", "max_attempts": "number",
        "base_delay": "number", "timeout": "number", "steps": "array"}');
    if p_shape ->> 'name' <> p_flow_slug or (p_shape ->> 'version')::int <> p_version then
        raise invalid_parameter_value using message = format(
            'the shape is that of %s@%s, not of %s@%s', p_shape ->> 'name',
            p_shape ->> 'version', p_flow_slug, p_version);
    end if;
    perform holdfast._check_name('a queue', coalesce(p_shape ->> 'queue', 'default'));
    perform holdfast._check_options((p_shape ->> 'max_attempts')::int,
        (p_shape ->> 'base_delay')::int, (p_shape ->> 'timeout')::int, null);
    perform holdfast._check_step_shape(u.place, u.step)
    from jsonb_array_elements(v_steps) with ordinality as u (step, place);
    perform holdfast._check_order(v_steps);
end $$;

-- Refuse steps that are there twice, that depend on others than those before them, or on one that
-- always runs at the end, and shapes of such last steps alone (22023). Called by _check_shape.
create or replace function holdfast._check_order(p_steps jsonb) returns void
language plpgsql immutable
as $$
declare
    v_reason text;
begin
    with steps as materialized (
        select u.place, u.step ->> 'slug' as slug, u.step -> 'deps' as deps,
            coalesce(u.step ->> 'trigger_rule' = 'always', false) as is_last
        from jsonb_array_elements(p_steps) with ordinality as u (step, place)
    ), known as materialized (
        select s.slug, min(s.place) as place, max(s.place) as last_place, bool_or(s.is_last)
            as is_last
        from steps s group by s.slug
    ), needed as (
        select s.place, s.slug, d.slug as dep, count(*) as mentions
        from steps s
        cross join jsonb_array_elements_text(coalesce(nullif(s.deps, 'null'), '[]')) as d (slug)
        group by s.place, s.slug, d.slug
    )
    select r.reason into v_reason
    from (
        select k.last_place, '', format('the shape has step %s twice', k.slug)
        from known k where k.last_place > k.place
        union all
        select n.place, n.dep, case
            when k.place is null or k.place >= n.place then format(
                'step %s depends on %s, which is not among the steps before it', n.slug,
                quote_literal(left(n.dep, 200)))
            when k.is_last then format(
                'step %s depends on %s, which always runs at the end: no step comes after it',
                n.slug, n.dep)
            when n.mentions > 1 then format('step %s depends on %s twice', n.slug, n.dep) end
        from needed n left join known k on k.slug = n.dep
        union all
        select s.place, '', format(
            'step %s always runs at the end: the shape needs a step that comes before it', s.slug)
        from steps s where not exists (select from steps t where not t.is_last)
    ) as r (place, dep, reason)
    where r.reason is not null
    order by r.place, r.dep limit 1;
    if found then
        raise invalid_parameter_value using message = v_reason;
    end if;
end $$;

-- Refuse a step of a shape that cannot be (22004, 22023). Called by _check_shape.
create or replace function holdfast._check_step_shape(p_place bigint, p_step jsonb) returns void
language plpgsql immutable
as $$
declare
    v_slug text := p_step ->> 'slug';
    v_what text := format('step %s of the shape', coalesce(left(v_slug, 200), '#' || p_place));
    v_deps text[];
begin
    perform holdfast._check_fields(v_what, p_step, '{
        "slug": "string", "kind": "string", "deps": "array", "wants_run": "boolean",
        "queue": "string", "max_attempts": "number", "base_delay": "number",
        "timeout": "number", "start_delay": "number", "required": "string",
        "forbidden": "string", "when_unmet": "string", "when_exhausted": "string",
        "runs": "string", "runs_kind": "string", "trigger_rule": "string",
        "tolerated_count": "number", "tolerated_percent": "number", "concurrency": "number",
        "jitter_percent": "number"}');
    perform holdfast._check_slug(v_slug);
    perform holdfast._check_name('a queue', coalesce(p_step ->> 'queue', 'default'));
    perform holdfast._check_options((p_step ->> 'max_attempts')::int,
        (p_step ->> 'base_delay')::int, (p_step ->> 'timeout')::int,
        (p_step ->> 'start_delay')::int);
    v_deps := array(select jsonb_array_elements_text(
        coalesce(nullif(p_step -> 'deps', 'null'), '[]')));
    perform holdfast._check_step(v_slug, coalesce(p_step ->> 'kind', 'single'), v_deps,
        holdfast._pattern(v_slug, p_step ->> 'required'),
        holdfast._pattern(v_slug, p_step ->> 'forbidden'),
        coalesce(p_step ->> 'when_unmet', 'skip'), coalesce(p_step ->> 'when_exhausted', 'fail'),
        coalesce(p_step ->> 'trigger_rule', 'none_failed'));
    perform holdfast._check_jitter(v_slug, (p_step ->> 'jitter_percent')::int);
    perform holdfast._check_map(v_slug, coalesce(p_step ->> 'kind', 'single'),
        (p_step ->> 'tolerated_count')::int, (p_step ->> 'tolerated_percent')::int,
        (p_step ->> 'concurrency')::int);
    if p_step ->> 'runs' is not null and not (p_step ->> 'runs' ~ '^[^@]+@[1-9][0-9]{0,8}$'
        and coalesce(p_step ->> 'runs_kind', '') in ('workflow', 'flow')
        and holdfast._is_workflow(split_part(p_step ->> 'runs', '@', 1))
        and cardinality(v_deps) <= 1
        and coalesce(p_step ->> 'trigger_rule', 'none_failed') = 'none_failed')
    then
        raise invalid_parameter_value using message = format(
            'step %s runs name@version of a workflow or a flow (runs_kind), depends on one step '
            'at most, and has no trigger rule', v_slug);
    end if;
end $$;

-- Refuse JSON that is not an object with these fields, of these types (22023). Numbers are whole
-- and fit an int. Any field may be absent or null. Called by the checks of shapes.
create or replace function holdfast._check_fields(p_what text, p_value jsonb, p_types jsonb)
returns void
language plpgsql immutable
as $$
declare
    v_field record;
begin
    if jsonb_typeof(p_value) <> 'object' then
        raise invalid_parameter_value using message = format(
            '%s is a JSON object, not %s', p_what, jsonb_typeof(p_value));
    end if;
    for v_field in
        select e.key, e.value, p_types ->> e.key as type from jsonb_each(p_value) as e
        order by e.key
    loop
        if v_field.type is null then
            raise invalid_parameter_value using message = format(
                '%s cannot have %s', p_what, quote_literal(left(v_field.key, 200)));
        elsif jsonb_typeof(v_field.value) not in (v_field.type, 'null') then
            raise invalid_parameter_value using message = format(
                '%s of %s is a JSON %s, not %s', v_field.key, p_what, v_field.type,
                jsonb_typeof(v_field.value));
        elsif jsonb_typeof(v_field.value) = 'number' and (v_field.value::numeric % 1 <> 0
            or v_field.value::numeric not between -2147483648 and 2147483647)
        then
            raise invalid_parameter_value using message = format(
                '%s of %s is a whole number up to 2,147,483,647, not %s', v_field.key, p_what,
                left(v_field.value::text, 200));
        end if;
    end loop;
end $$;

-- Return a pattern of a step as JSON. Refuses a text that is not JSON (22023). Called by
-- _check_step_shape.
create or replace function holdfast._pattern(p_step text, p_pattern text) returns jsonb
language plpgsql immutable
as $$
begin
    return p_pattern::jsonb;
exception when data_exception or program_limit_exceeded or statement_too_complex then
    raise invalid_parameter_value using message = format(
        'the patterns of step %s are texts of JSON objects', p_step);
end $$;

-- Refuse a jitter that is not a percentage (22023). Called by add_step and _check_step_shape.
create or replace function holdfast._check_jitter(p_step text, p_percent int) returns void
language plpgsql immutable
as $$
begin
    if p_percent not between 0 and 100 then
        raise invalid_parameter_value using message = format(
            'step %s: jitter_percent is 0 to 100, not %s', p_step, p_percent);
    end if;
end $$;

-- Refuse options that only maps have, and values that these cannot have (22023). Called by add_step
-- and _check_step_shape.
create or replace function holdfast._check_map(
    p_step text, p_type text, p_count int, p_percent int, p_concurrency int
) returns void
language plpgsql immutable
as $$
declare
    v_reason text := case
        when p_type <> 'map' and num_nonnulls(p_count, p_percent, p_concurrency) > 0
        then 'tolerated_count, tolerated_percent and concurrency are options of maps'
        when p_count < 0 then 'tolerated_count is 0 or more, not ' || p_count
        when p_percent not between 0 and 100
        then 'tolerated_percent is 0 to 100, not ' || p_percent
        when p_concurrency < 1 then 'concurrency is 1 or more, not ' || p_concurrency end;
begin
    if v_reason is not null then
        raise invalid_parameter_value using message = format('step %s: %s', p_step, v_reason);
    end if;
end $$;

-- Refuse trigger rules that a step cannot have (22023). Called by _check_step.
create or replace function holdfast._check_rule(
    p_step text, p_type text, p_deps text[], p_is_conditional boolean, p_when_unmet text,
    p_rule text
) returns void
language plpgsql immutable
as $$
declare
    v_reason text := case
        when p_rule is null or p_rule not in ('none_failed', 'all_done', 'one_failed', 'always')
        then 'rules are none_failed, all_done, one_failed and always'
        when p_rule = 'none_failed' then null
        when p_type = 'map' then 'a map has none: it needs the elements'
        when p_rule <> 'always' and cardinality(p_deps) = 0 then 'it depends on no step'
        when p_rule = 'one_failed' and p_when_unmet = 'fail'
        then 'the run would fail because nothing failed: when_unmet is skip or skip-cascade'
        when p_rule = 'always' and p_is_conditional then 'a step that always runs has no patterns'
        end;
begin
    if v_reason is not null then
        raise invalid_parameter_value using message = format(
            'step %s cannot have trigger_rule %s: %s', p_step,
            coalesce(left(p_rule, 200), 'null'), v_reason);
    end if;
end $$;
