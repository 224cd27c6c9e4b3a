-- What code says of its workflows and flows, for programs that do not have the code.

-- Record what an app's code says. The arrays are parallel: names with their app, the highest
-- versions that a program has, JSON schemas of inputs (null without one), and what the docs say.
-- What a program of a higher version has said stays, and nothing is written that is there already.
-- Refuses values that are not allowed (22004, 22023).
-- Locks: rows of catalogue that change, by name. Called by workers that sign on.
create or replace function holdfast.declare_catalogue(
    p_names text[], p_versions int[], p_input_schemas json[], p_abouts text[]
) returns void
language plpgsql
as $$
declare
    v_each record;
begin
    for v_each in
        select u.* from unnest(p_names, p_versions, p_input_schemas, p_abouts)
            as u (name, version, input_schema, about)
        order by u.name
    loop
        perform holdfast._check_name('a workflow', v_each.name);
        perform holdfast._check_given('a version', v_each.version is not null);
        perform holdfast._check_version(v_each.version);
        perform holdfast._check_given('a text', v_each.about is not null);
        if exists (
            select from holdfast.catalogue c
            where c.name = v_each.name and (c.version > v_each.version
                or (c.version, c.input_schema::text, c.about)
                    is not distinct from (v_each.version, v_each.input_schema::text, v_each.about))
        ) then
            continue;
        end if;
        insert into holdfast.catalogue as c (name, version, input_schema, about)
        values (v_each.name, v_each.version, v_each.input_schema, v_each.about)
        on conflict (name) do update
        set version = excluded.version, input_schema = excluded.input_schema,
            about = excluded.about
        where c.version <= excluded.version;
    end loop;
end $$;

-- Return what code has said of workflows and flows, by name; names that are not known are left out.
-- Locks nothing. Called by clients.
create or replace function holdfast.read_catalogue(p_names text[])
returns table (name text, version int, input_schema json, about text)
language sql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
    select c.name, c.version, c.input_schema, c.about
    from (select distinct n.name from unnest(p_names) as n (name)) as u
    cross join lateral (
        select * from holdfast.catalogue c where c.name = u.name limit 1
    ) as c
    order by c.name
$$;
