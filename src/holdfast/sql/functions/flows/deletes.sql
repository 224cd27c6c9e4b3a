-- Delete flows with their runs.

-- Delete all versions of a flow and all its runs, with their logs, states and results. `runs` is
-- how many runs were deleted, null if there is no such flow. A call ends or deletes at most p_limit
-- runs, null for all, also of those that others start in their place; `is_done` is false if there
-- is more to do. The next call is then given the `flow_slug` and as p_before the `before` of this
-- one: once the shapes are deleted no run can start, and a flow that is defined again meanwhile
-- keeps its runs. `notices` are (topic, payload), for those who wait for runs that were terminated;
-- with p_tell, the schema's name, they are sent within the transaction if that can be done at once.
--
-- Refuses flows with open runs (HF005) unless they are to be terminated, flows that steps of other
-- flows or schedules run (HF005) unless p_force, a limit below 1 (22023), and nulls (22004).
-- Locks: the flow's versions and starts; as terminate_runs; rows of runs that have ended. Called by
-- clients.
create or replace function holdfast.delete_flow(
    p_flow_slug text, p_terminate boolean default false, p_limit int default 1000,
    p_before bigint default null, p_tell text default null, p_force boolean default false,
    out runs int, out is_done boolean, out before bigint, out flow_slug text, out notices text[]
)
language plpgsql
as $$
declare
    v_deleted int;
    v_is_clear boolean;
begin
    perform holdfast._check_given('the slug of a flow', p_flow_slug is not null);
    perform holdfast._check_given('terminate', p_terminate is not null);
    perform holdfast._check_given('force', p_force is not null);
    if p_limit < 1 then
        raise invalid_parameter_value using message = format(
            'a flow is deleted in steps of 1 run or more, not %s', p_limit);
    end if;
    flow_slug := holdfast._full_slug(p_flow_slug);
    perform holdfast._lock_versions(flow_slug);
    before := holdfast._check_moment('the start of a deletion', p_before);
    is_done := false;
    if before is null and exists (
        select from holdfast.flows f where f.flow_slug = delete_flow.flow_slug)
    then
        runs := 0;
        if not p_force then
            perform holdfast._check_unused(flow_slug);
        end if;
        select c.is_clear, holdfast._tell(p_tell, c.notices) into v_is_clear, notices
        from holdfast._clear_flow(flow_slug, p_terminate, p_limit) as c;
        if not v_is_clear then
            return;
        end if;
        delete from holdfast.replaced_shapes x using holdfast.flows f
        where f.flow_slug = delete_flow.flow_slug and x.handler = f.handler;
        perform holdfast._delete_shape(f.handler)
        from holdfast.flows f where f.flow_slug = delete_flow.flow_slug;
    end if;
    perform holdfast._block_starts(flow_slug);
    before := coalesce(before, holdfast._micros(holdfast._after_starts(flow_slug)));
    v_deleted := holdfast._delete_runs_of(flow_slug, holdfast._moment(before), p_limit);
    is_done := coalesce(v_deleted < p_limit, true);
    if v_deleted > 0 or p_before is not null then
        runs := v_deleted;
    end if;
end $$;

-- Refuse a flow that others run (HF005): a step of the newest version of another flow, or of a
-- version that has open runs; or a schedule. Locks nothing. Called by delete_flow.
create or replace function holdfast._check_unused(p_flow_slug text) returns void
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_steps text[] := array(
        select format('step %s of flow %s', s.step_slug, s.handler)
        from holdfast.steps s
        cross join lateral (
            select f.flow_slug, f.version from holdfast.flows f where f.handler = s.handler limit 1
        ) as f
        where s.runs is not null and s.runs_kind = 'flow'
            and split_part(s.runs, '@', 1) = p_flow_slug and f.flow_slug <> p_flow_slug
            and (not exists (
                    select from holdfast.flows n
                    where n.flow_slug = f.flow_slug and n.version > f.version)
                or exists (
                    select from unnest(array['running']) as o (status)
                    cross join lateral (
                        select r.run_id from holdfast.runs r
                        where r.name = f.flow_slug and r.status = o.status
                            and r.version = f.version and r.kind = 'flow' limit 1
                    ) as r))
        order by s.handler collate "C", s.step_slug collate "C");
    v_users text[] := v_steps || array(
        select 'schedule ' || s.name from holdfast.schedules s
        where s.kind = 'flow' and s.target = p_flow_slug order by s.name);
begin
    if cardinality(v_users) > 0 then
        raise sqlstate 'HF005' using message = format(
            'flow %s is still run by %s%s. Change or delete what runs it first, or force the '
            'deletion: what runs it fails then', p_flow_slug,
            array_to_string(v_users[:5], ', '), case when cardinality(v_users) > 5
                then format(' and %s more', cardinality(v_users) - 5) else '' end);
    end if;
end $$;

-- Terminate the open runs of a flow that is to be deleted, at most p_limit. `is_clear` is true if
-- it has none then; notices are (topic, payload). Refuses to if p_terminate is false (HF005).
-- Locks: the flow's starts; as terminate_runs, without waiting long. Called by delete_flow.
create or replace function holdfast._clear_flow(
    p_flow_slug text, p_terminate boolean, p_limit int, out is_clear boolean, out notices text[]
)
language plpgsql
as $$
declare
    v_running constant text := 'running';
    v_open int;
    v_stopped record;
    v_ended int := 0;
begin
    if p_terminate then
        loop  -- other flows, of which these runs are steps, may start more of them
            v_stopped := holdfast._stop_flow(
                p_flow_slug, null, 'its flow is deleted', p_limit - v_ended);
            notices := notices || v_stopped.notices;
            v_ended := v_ended + v_stopped.ended;
            exit when v_stopped.ended = 0 or v_ended >= p_limit;
        end loop;
    else
        perform holdfast._block_starts(p_flow_slug);
        select count(*) into v_open from (
            select from holdfast.runs r
            where r.name = p_flow_slug and r.status = v_running and r.kind = 'flow'
            limit 1000) as r;
        if v_open > 0 then
            raise sqlstate 'HF005' using message = format(
                'runs of flow %s that have not ended: %s. End them first, or have them terminated',
                p_flow_slug, case v_open when 1000 then '1,000 or more' else v_open::text end);
        end if;
    end if;
    is_clear := not exists (
        select from holdfast.runs r
        where r.name = p_flow_slug and r.status = v_running and r.kind = 'flow');
end $$;

-- Delete runs of a flow that have ended and were started before a moment, at most p_limit. Returns
-- how many. Locks: expects the flow's starts locked, so that no retry reads them; rows of runs, and
-- what belongs to them. Called by delete_flow.
create or replace function holdfast._delete_runs_of(
    p_flow_slug text, p_before timestamptz, p_limit int
) returns int
language plpgsql
as $$
declare
    v_ended uuid[] := array(
        select r.run_id
        from unnest(array['completed', 'failed', 'cancelled', 'timed_out', 'terminated'])
            as s (status)
        cross join lateral (
            select r.run_id, r.kind from holdfast.runs r
            where r.name = p_flow_slug and r.status = s.status and r.created_at <= p_before
            offset 0
        ) as r
        where r.kind = 'flow'
        limit p_limit);
begin
    perform holdfast._delete_runs(v_ended);
    return cardinality(v_ended);
end $$;
