-- Open runs that are few, found from the rows of their tasks, or from the build they stay with.

-- Return the runs that may be in one of the states queued, running, stuck and paused, from the few
-- rows of tasks in that state: turns, and steps of flows, so a run may come several times. More
-- than p_limit rows if there are more. Called by _active_candidates.
create or replace function holdfast._active_runs(p_states text[], p_limit int)
returns setof uuid
language plpgsql stable
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

-- Return the open runs that stay with a build, p_limit at most. Called by _active_candidates.
create or replace function holdfast._active_runs_of_build(p_build text, p_limit int)
returns setof uuid
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    return query
    select r.run_id from holdfast.runs r
    where r.build = p_build and r.status = 'running'
    limit p_limit;
end $$;

-- Return the runs that may be in these states and of this build (null: any), from the few rows of
-- tasks in one of the states, else from the open runs of the build; null if there are more than
-- p_most, or if such runs may have ended, or wait and have no build. Called by _list_ids.
create or replace function holdfast._active_candidates(
    p_states text[], p_build text, p_most int
) returns uuid[]
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_found uuid[];
begin
    if p_states <@ array['queued', 'running', 'stuck', 'paused'] then
        v_found := array(select * from holdfast._active_runs(p_states, p_most));
    end if;
    if p_build is not null and (v_found is null or cardinality(v_found) > p_most)
        and p_states <@ array['queued', 'running', 'stuck', 'paused', 'waiting'] then
        v_found := array(select * from holdfast._active_runs_of_build(p_build, p_most + 1));
    end if;
    return case when cardinality(v_found) <= p_most then v_found end;
end $$;
