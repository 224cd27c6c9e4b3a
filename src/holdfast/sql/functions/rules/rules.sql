-- Rules for starts: what workflows and flows declare, and what holds for one start.

-- Record the rules of an app's workflows and flows. The arrays are parallel: names with their app,
-- the highest versions that a program has, and the rules as JSON objects with the columns of
-- start_rules, null for none. What a program of a higher version has declared stays.
-- Refuses values that are not allowed (22004, 22023).
-- Locks: if other names get rules, or lose them, an advisory lock, alone: starts whose callers do
-- not know it have ended then, see _knows_shards; rows of start_rules, by name. Called by workers
-- that sign on.
create or replace function holdfast.declare_start_rules(
    p_names text[], p_versions int[], p_rules json[]
) returns void
language plpgsql
as $$
declare
    v_rules holdfast.start_rules;
    v_each record;
begin
    if exists (
        select from unnest(p_names, p_rules) as u (name, rules)
        where (u.rules is null) = exists (
            select from holdfast.start_rules r where r.name = u.name))
    then
        perform pg_advisory_xact_lock(hashtext('holdfast.start_rules'), 0);
    end if;
    for v_each in
        select u.* from unnest(p_names, p_versions, p_rules) as u (name, version, rules)
        order by u.name
    loop
        perform holdfast._check_name('a workflow', v_each.name);
        perform holdfast._check_given('a version', v_each.version is not null);
        perform holdfast._check_version(v_each.version);
        if v_each.rules is null then
            delete from holdfast.start_rules r
            where r.name = v_each.name and r.version <= v_each.version;
            continue;
        end if;
        v_rules := holdfast._merge_rules(null, v_each.rules);
        v_rules.name := v_each.name;
        v_rules.version := v_each.version;
        insert into holdfast.start_rules as r select (v_rules).*
        on conflict (name) do update
        set version = excluded.version, singleton_conflict = excluded.singleton_conflict,
            singleton_key = excluded.singleton_key, debounce_seconds = excluded.debounce_seconds,
            debounce_key = excluded.debounce_key,
            debounce_max_wait_seconds = excluded.debounce_max_wait_seconds,
            throttle_limit = excluded.throttle_limit,
            throttle_period_seconds = excluded.throttle_period_seconds,
            throttle_key = excluded.throttle_key, throttle_excess = excluded.throttle_excess
        where r.version <= excluded.version and r is distinct from excluded;
    end loop;
end $$;

-- Return the rules that workflows and flows have declared, by name: all, or those of one name.
-- Called by clients.
create or replace function holdfast.list_start_rules(p_name text default null)
returns setof holdfast.start_rules
language sql stable
as $$
    select r.* from holdfast.start_rules r where p_name is null or r.name = p_name order by r.name
$$;

-- Return the rules for a start: those that the workflow has declared, changed by those that are
-- given with the start. p_rules is null or a JSON object: `declared` are the rules in the code of
-- the caller, for a workflow of which no worker has signed on yet, `given` what the caller asks for
-- instead. Refuses values that are not allowed (22023). Locks nothing. Called by _start_ruled,
-- _start_each and _start_ruled_runs.
create or replace function holdfast._rules_of(p_name text, p_rules json)
returns holdfast.start_rules
language plpgsql stable
as $$
declare
    v_rules holdfast.start_rules;
begin
    if not holdfast._is_legible(coalesce(p_rules, 'null')) then
        perform holdfast._check_json('the rules', p_rules);
    end if;
    select r.* into v_rules from holdfast.start_rules r where r.name = p_name;
    if not found then
        v_rules := holdfast._merge_rules(null, p_rules -> 'declared');
    end if;
    return holdfast._merge_rules(v_rules, p_rules -> 'given');
end $$;

-- Return rules with those columns changed that a JSON object has. Refuses values that are not
-- allowed (22023). Locks nothing. Called by _rules_of and declare_start_rules.
create or replace function holdfast._merge_rules(p_rules holdfast.start_rules, p_changes json)
returns holdfast.start_rules
language plpgsql immutable
as $$
declare
    v_rules holdfast.start_rules := p_rules;
begin
    if p_changes is null or json_typeof(p_changes) = 'null' then
        return p_rules;
    end if;
    begin
        v_rules := json_populate_record(p_rules, p_changes);
    exception when data_exception then
        raise invalid_parameter_value using message = format(
            'rules of a start are an object with the columns of start_rules: %s', sqlerrm);
    end;
    perform holdfast._check_rules(v_rules);
    return v_rules;
end $$;

-- Refuse rules that cannot work (22023). Called by _merge_rules.
create or replace function holdfast._check_rules(p_rules holdfast.start_rules) returns void
language plpgsql immutable
as $$
declare
    v_flaw text := case
        when p_rules.singleton_conflict not in ('refuse', 'return', 'queue')
            then 'singleton_conflict is refuse, return or queue'
        when not (p_rules.debounce_seconds > 0 and p_rules.debounce_seconds <= 1e10)
            then 'debounce_seconds is more than 0'
        when not (p_rules.debounce_max_wait_seconds >= p_rules.debounce_seconds
            and p_rules.debounce_max_wait_seconds <= 1e10)
            then 'debounce_max_wait_seconds is not less than debounce_seconds'
        when p_rules.throttle_limit not between 1 and 1000000
            then 'throttle_limit is 1 to 1,000,000'
        when not (p_rules.throttle_period_seconds > 0 and p_rules.throttle_period_seconds <= 1e10)
            then 'throttle_period_seconds is more than 0'
        when p_rules.throttle_excess not in ('delay', 'refuse')
            then 'throttle_excess is delay or refuse'
        when p_rules.singleton_conflict is not null and p_rules.debounce_seconds is not null
            and p_rules.singleton_key is distinct from p_rules.debounce_key
            then 'a singleton and a debounce of one workflow have the same key'
        when num_nulls(p_rules.throttle_limit, p_rules.throttle_period_seconds,
            p_rules.throttle_excess) not in (0, 3)
            then 'a throttle has a throttle_limit, throttle_period_seconds and throttle_excess'
        when strpos(concat(p_rules.singleton_key, p_rules.debounce_key, p_rules.throttle_key),
                '|') > 0
            or not (holdfast._is_key_path(coalesce(p_rules.singleton_key, 'input'))
            and holdfast._is_key_path(coalesce(p_rules.debounce_key, 'input'))
            and holdfast._is_key_path(coalesce(p_rules.throttle_key, 'input')))
            then 'a key is a path into the input, such as input.customer'
        end;
begin
    if v_flaw is not null then
        raise invalid_parameter_value using message = 'rules of a start: ' || v_flaw;
    end if;
end $$;

-- Return the row of a rule's key, locked; p_run_id is written if there was none, which `is_new`
-- tells. Locks: the row. Called by _take_singleton, _find_debounced and _take_slot.
create or replace function holdfast._lock_start_key(
    p_rule text, p_name text, p_key text, p_run_id uuid,
    out run_id uuid, out since timestamptz, out not_before timestamptz, out count bigint,
    out expires_at timestamptz, out is_new boolean
)
language plpgsql
as $$
begin
    insert into holdfast.start_keys as k (rule, name, key, run_id)
    values (p_rule, p_name, p_key, p_run_id)
    on conflict (rule, name, key) do update set name = k.name
    returning k.run_id, k.since, k.not_before, k.count, k.expires_at, k.xmax = 0
    into run_id, since, not_before, count, expires_at, is_new;
end $$;
