-- How long ended runs are kept if their start does not say so.

-- Record how long ended runs of an app's workflows and flows are kept. The arrays are parallel:
-- names with their app, the highest versions that a program has, and seconds. What a program of a
-- higher version has declared stays. Refuses values that are not allowed (22004, 22023).
-- Locks: rows of declared_retentions, by name. Called by workers that sign on.
create or replace function holdfast.declare_retentions(
    p_names text[], p_versions int[], p_seconds float8[]
) returns void
language plpgsql
as $$
declare
    v_each record;
begin
    for v_each in
        select u.* from unnest(p_names, p_versions, p_seconds) as u (name, version, seconds)
        order by u.name
    loop
        perform holdfast._check_name('a workflow', v_each.name);
        perform holdfast._check_given('a version', v_each.version is not null);
        perform holdfast._check_version(v_each.version);
        perform holdfast._check_given('a retention', v_each.seconds is not null);
        perform holdfast._check_seconds('a retention', v_each.seconds);
        insert into holdfast.declared_retentions as d (name, version, seconds)
        values (v_each.name, v_each.version, v_each.seconds)
        on conflict (name) do update
        set version = excluded.version, seconds = excluded.seconds
        where d.version < excluded.version
            or (d.version = excluded.version and d.seconds <> excluded.seconds);
    end loop;
end $$;

-- Return how many seconds ended runs of a workflow or a flow are kept if their start does not say
-- so: as its code has declared, else 30 days. Locks nothing. Called by start_one, _start_runs,
-- _start_flows, _start_plain_flow and _merge_debounced.
create or replace function holdfast._declared_retention(p_name text) returns float8
language plpgsql stable
as $$
begin
    return coalesce(
        (select d.seconds from holdfast.declared_retentions d where d.name = p_name), 2592000);
end $$;
