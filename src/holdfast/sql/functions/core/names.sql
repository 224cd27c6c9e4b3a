-- Names of workflows, with and without their apps, and handlers.

-- Return the handler of a run's turn: what a worker must have to claim it. Called by start_one,
-- _start_plain_runs, _start_runs, _continue_runs, _start_fork, _merge_debounced, _build_of_start
-- and move_to_build.
create or replace function holdfast._turn_handler(p_name text, p_version int, p_build text)
returns text
language sql immutable
return p_name || '@' || p_version::text || coalesce('+' || p_build, '');

-- Return the name of a workflow with its app. For a name without one, that is the only app that has
-- ever signed on with it. Refuses a name that several apps have, or none (22023): nothing is
-- guessed. Called by start_run and users.
create or replace function holdfast.full_name(p_name text) returns text
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_apps text[];
begin
    if p_name is null or strpos(p_name, '/') > 0 then
        return p_name;
    end if;
    v_apps := holdfast.apps_with(p_name);
    if cardinality(v_apps) <> 1 then
        raise invalid_parameter_value using
            message = format('workflow %s is in %s', p_name, case cardinality(v_apps)
                when 0 then 'no app that has ever had a worker here'
                else 'several apps: ' || array_to_string(v_apps, ', ') end),
            hint = format('name the app as well: %s/%s', coalesce(v_apps[1], 'APP'), p_name);
    end if;
    return v_apps[1] || '/' || p_name;
end $$;

-- List the apps that have ever signed on with a workflow of this name. Called by clients and
-- full_name.
create or replace function holdfast.apps_with(p_workflow text) returns text[]
language sql stable
as $$
    select array(
        select a.app from holdfast.apps a where p_workflow = any (a.workflows) order by a.app)
$$;

-- Refuse ids under which runs of other workflows stand: to the caller they would look like the runs
-- that were asked for. Locks nothing. Called by start_one, _start_all and start_flows.
create or replace function holdfast._check_workflows(p_run_ids uuid[], p_names text[])
returns void
language plpgsql stable
as $$
declare
    v_other record;
begin
    select r.run_id, r.name, u.name as asked into v_other
    from unnest(p_run_ids, p_names) as u (run_id, name)
    cross join lateral (
        select r.run_id, r.name from holdfast.runs r where r.run_id = u.run_id limit 1
    ) as r
    where r.name <> u.name  -- with and without its app, a name is one
        and r.name <> split_part(u.name, '/', 2) and u.name <> split_part(r.name, '/', 2)
    limit 1;
    if found then
        raise exception using errcode = 'HF001', detail = v_other.run_id, message = format(
            'run %s is one of workflow %s, not of %s: use another id',
            v_other.run_id, v_other.name, v_other.asked);
    end if;
end $$;
