-- The build that a new run gets.

-- Return the build that a new run stays with; null if it is not pinned. That is the build of its
-- parent, if that is of the same app, otherwise the app's current build, or for a share of the runs
-- the one that is ramped. A build counts only if it has this version of the workflow, pinned: no
-- run waits for code that was never there. Callers ask only if there is any build. Locks nothing.
-- Called by start_one, _start_runs, _continue_runs and _merge_debounced.
create or replace function holdfast._build_of_start(
    p_run_id uuid, p_name text, p_version int, p_parent_run_id uuid default null
) returns text
language plpgsql stable
as $$
declare
    v_app constant text := split_part(p_name, '/', 1);
    v_build text;
begin
    if p_parent_run_id is not null then
        v_build := (
            select r.build from holdfast.runs r
            where r.run_id = p_parent_run_id and starts_with(r.name, v_app || '/'));
    end if;
    if v_build is null then
        v_build := (
            select case when holdfast._percentile(p_run_id) < r.ramp_percent then r.ramped
                else r.current end
            from holdfast.build_routes r where r.app = v_app);
    end if;
    return (
        select b.build from holdfast.builds b
        where b.app = v_app and b.build = v_build
            and holdfast._turn_handler(p_name, p_version, null) = any (b.pinned));
end $$;

-- Return where a run stands in a ramp, from 0 to below 100: always the same of one run, so that a
-- share that grows keeps the runs that it had. Called by _build_of_start.
create or replace function holdfast._percentile(p_run_id uuid) returns float8
language sql immutable
return ('x' || encode(substring(sha256(uuid_send(p_run_id)) for 4), 'hex'))::bit(32)::bigint
    * 100 / 4294967296.0::float8;
