-- Runs that get another build.

-- Move runs to another build of their app; with a null they are not pinned any more. A run that a
-- worker executes moves when it waits next. An ended run is moved for its retries and forks, which
-- have its build. Outcomes: 'moved'; 'same'; 'missing'; 'flow', which has no build; 'unknown' if no
-- worker of that build has ever signed on for the run's app; 'unfit' if it does not have the
-- workflow pinned in this version. Notices are (topic, payload).
-- Locks: turn rows, then runs, both by run_id. Called by clients.
create or replace function holdfast.move_to_build(
    p_run_ids uuid[], p_build text default null,
    out run_ids uuid[], out outcomes text[], out notices text[]
)
language plpgsql
as $$
begin
    perform holdfast._lock_turns(p_run_ids);
    perform holdfast._lock_runs(p_run_ids);
    with asked as materialized (
        select distinct u.run_id from unnest(p_run_ids) as u (run_id)
    ), judged as materialized (
        select a.run_id, r.tid, r.name, r.version, r.queue, r.status, case
            when r.tid is null then 'missing'
            when r.kind = 'flow' then 'flow'
            when r.build is not distinct from p_build then 'same'
            when p_build is null then 'moved'
            when b.pinned is null then 'unknown'
            when holdfast._turn_handler(r.name, r.version, null) = any (b.pinned) then 'moved'
            else 'unfit' end as outcome
        from asked a
        left join lateral (
            select r.ctid as tid, r.* from holdfast.runs r where r.run_id = a.run_id limit 1
        ) as r on true
        left join lateral (
            select b.pinned from holdfast.builds b
            where b.app = split_part(r.name, '/', 1) and b.build = p_build limit 1
        ) as b on true
    ), moved as (
        update holdfast.runs r set build = p_build
        from judged j
        where j.outcome = 'moved' and r.ctid = j.tid
    ), turned as (
        update holdfast.tasks t
        set handler = holdfast._turn_handler(j.name, j.version, p_build), sticky_worker = null
        from judged j
        cross join lateral (
            select t.ctid as tid from holdfast.tasks t where t.run_id = j.run_id and t.key = ''
            limit 1
        ) as f
        where j.outcome = 'moved' and t.ctid = f.tid
    )
    select array_agg(j.run_id order by j.run_id), array_agg(j.outcome order by j.run_id),
        array_agg(distinct array['work', j.queue])
            filter (where j.outcome = 'moved' and j.status = 'running')
    into run_ids, outcomes, notices
    from judged j;
end $$;

-- Return the open runs that stay with a build, by id, after one of them. Called by clients.
create or replace function holdfast.runs_of_build(
    p_app text, p_build text, p_after uuid default null, p_limit int default 1000
) returns setof uuid
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    return query
    select r.run_id from holdfast.runs r
    where r.build = p_build and r.status = 'running' and split_part(r.name, '/', 1) = p_app
        and (p_after is null or r.run_id > p_after)
    order by r.run_id limit holdfast._limit(p_limit);
end $$;
