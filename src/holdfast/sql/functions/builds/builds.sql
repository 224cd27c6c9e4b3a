-- Builds of apps: which there are, and which of them new runs get.

-- Record that a worker of a build signs on: as late as its app did, also if the clock was set back
-- since. p_pinned are the handlers of its pinned workflows. The first build of an app becomes the
-- current one. Builds that were not seen for 30 days, and that nothing needs any more, are deleted.
-- Refuses a build's name with other characters (23514).
-- Locks: rows of builds; the app's route. Called by workers.
create or replace function holdfast.declare_build(p_app text, p_build text, p_pinned text[])
returns void
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    insert into holdfast.builds as b (app, build, pinned, seen_at, signed_on_at)
    values (p_app, p_build, p_pinned, v_now, greatest(v_now, (
        select a.signed_on_at from holdfast.apps a where a.app = p_app)))
    on conflict (app, build) do update
    set pinned = excluded.pinned, signed_on_at = excluded.signed_on_at;
    insert into holdfast.build_routes (app, current, changed_at)
    values (p_app, p_build, v_now)
    on conflict do nothing;
    delete from holdfast.builds b
    using holdfast.build_routes r
    where b.app = p_app and b.signed_on_at < v_now - interval '30 days' and r.app = p_app
        and b.build is distinct from r.current and b.build is distinct from r.ramped
        and b.build <> all (r.former)
        and holdfast._open_runs_of_build(p_app, b.build) = 0
        and holdfast._workers_of_build(b.build, b.pinned) = 0;
end $$;

-- Return how many open runs stay with a build. Called by declare_build and list_builds.
create or replace function holdfast._open_runs_of_build(p_app text, p_build text) returns bigint
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    return count(*) from holdfast.runs r
    where r.build = p_build and r.status = 'running' and split_part(r.name, '/', 1) = p_app;
end $$;

-- Return how many live workers serve the pinned workflows of a build, or some of them. Called by
-- declare_build, kept_declarations, _needed_for and list_builds.
create or replace function holdfast._workers_of_build(p_build text, p_pinned text[])
returns bigint
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return count(*) from holdfast.workers w
    where holdfast._is_heard(w.heard_at, holdfast.now(), 8)
        and w.handlers && array(select p.handler || '+' || p_build
            from unnest(p_pinned) as p (handler));
end $$;

-- Return the names of an app's workflows and flows that code of this build must not declare: all
-- that were declared, while live workers have the current build and this is another one, or none
-- (a null). Null if the app has no build. Called by workers.
create or replace function holdfast.kept_declarations(p_app text, p_build text) returns text[]
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return (
        select case
            when r.current is not distinct from p_build
                or holdfast._workers_of_build(b.build, b.pinned) = 0 then '{}'
            else array(
                select d.name from holdfast.declared_retentions d
                where starts_with(d.name, p_app || '/') order by d.name) end
        from holdfast.build_routes r
        left join holdfast.builds b on b.app = r.app and b.build = r.current
        where r.app = p_app);
end $$;

-- Return the handlers of an app with open work that no live worker serves on its queue but those of
-- one build: workflows, versions, activities and steps that other builds do not have, or have no
-- workers for. What is pinned to the build is not among them. Called by list_builds.
create or replace function holdfast._needed_for(p_app text, p_build text, p_pinned text[])
returns text[]
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_own constant text[] := array(
        select p.handler || '+' || p_build from unnest(p_pinned) as p (handler));
begin
    if holdfast._workers_of_build(p_build, p_pinned) = 0 then
        return '{}';
    end if;
    return array(
        select distinct s.handler
        from (
            select q.queue, h.handler
            from holdfast.workers w
            cross join lateral unnest(w.queues) as q (queue)
            cross join lateral unnest(w.handlers) as h (handler)
            where holdfast._is_heard(w.heard_at, holdfast.now(), 8)
                and starts_with(h.handler, p_app || '/') and h.handler <> all (v_own)
            group by q.queue, h.handler having bool_and(w.handlers && v_own)
        ) as s
        where exists (
                select from holdfast.tasks t
                where t.queue = s.queue and t.handler = s.handler and t.worker is null)
            or exists (
                select from holdfast.tasks t
                where t.queue = s.queue and t.handler = s.handler and t.worker is not null)
        order by s.handler);
end $$;

-- List the builds of an app, or of all with a null, the newest first within an app. `ramp_percent`
-- is the share of new runs that get one which is not current. `first_known_at` is when its
-- first worker signed on, or it was promoted without one: `seen_at` of the table; `signed_on_at` is
-- when a worker signed on last, null if none did. Moments are microseconds since 1970. Called by
-- clients.
create or replace function holdfast.list_builds(p_app text default null)
returns table (
    app text, build text, is_current boolean, ramp_percent float8, open_runs bigint,
    workers bigint, needed_for text[], pinned text[], first_known_at bigint,
    signed_on_at bigint
)
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return query
    select b.app, b.build, coalesce(b.build = r.current, false),
        case when b.build = r.ramped then r.ramp_percent end,
        holdfast._open_runs_of_build(b.app, b.build),
        holdfast._workers_of_build(b.build, b.pinned),
        holdfast._needed_for(b.app, b.build, b.pinned), b.pinned,
        holdfast._micros(b.seen_at), holdfast._micros(b.signed_on_at)
    from holdfast.builds b
    left join holdfast.build_routes r on r.app = b.app
    where p_app is null or b.app = p_app
    order by b.app, b.seen_at desc, b.build;
end $$;

-- Make a build the current one: new runs get it. A ramp ends. Outcomes: 'changed'; 'same' if it was
-- current already and nothing was ramped; 'unknown' if no worker of it has ever signed on. With
-- p_force an unknown one is taken too: it counts as pinning what the current one does, and its runs
-- wait for a worker. `former` is what was current before.
-- Refuses a build's name with other characters (23514).
-- Locks: the app's route; with p_force a row of builds. Called by clients.
create or replace function holdfast.promote_build(
    p_app text, p_build text, p_force boolean default false,
    out outcome text, out former text
)
language plpgsql
as $$
declare
    v_route holdfast.build_routes;
begin
    select * into v_route from holdfast.build_routes r where r.app = p_app for update;
    former := v_route.current;
    if not exists (
        select from holdfast.builds b where b.app = p_app and b.build = p_build)
    then
        if not p_force then
            outcome := 'unknown';
            return;
        end if;
        insert into holdfast.builds (app, build, pinned, seen_at)
        values (p_app, p_build, coalesce((
            select b.pinned from holdfast.builds b
            where b.app = p_app and b.build = v_route.current), '{}'), holdfast.now())
        on conflict do nothing;
    end if;
    outcome := 'same';
    if v_route.current is distinct from p_build or v_route.ramped is not null then
        outcome := 'changed';
        insert into holdfast.build_routes as r (app, current, changed_at)
        values (p_app, p_build, holdfast.now())
        on conflict (app) do update
        set current = p_build, ramped = null, ramp_percent = 0, changed_at = excluded.changed_at,
            former = case when r.current is null or r.current = p_build then r.former
                else (r.former || r.current)[greatest(1, cardinality(r.former) - 18):] end;
    end if;
end $$;

-- Let a share of new runs get a build; 0 ends the ramp. Outcomes: 'changed', 'same', 'unknown' as
-- in promote_build, 'current' for the build that all other runs get already.
-- Refuses a share below 0 or above 100 (22023), whatever the build. Locks: the app's route. Called
-- by clients.
create or replace function holdfast.ramp_build(
    p_app text, p_build text, p_percent float8, out outcome text
)
language plpgsql
as $$
declare
    v_route holdfast.build_routes;
    v_ramped constant text := case when p_percent <> 0 then p_build end;
begin
    select * into v_route from holdfast.build_routes r where r.app = p_app for update;
    if (p_percent between 0 and 100) is not true then
        raise exception using errcode = '22023', message = format(
            'a share of new runs is from 0 to 100 percent, not %s', p_percent);
    end if;
    outcome := case
        when not exists (
            select from holdfast.builds b where b.app = p_app and b.build = p_build)
            then 'unknown'
        when v_route.current = p_build then 'current'
        when v_ramped is not distinct from v_route.ramped and p_percent = v_route.ramp_percent
            or p_percent = 0 and v_route.ramped is distinct from p_build then 'same'
        else 'changed' end;
    if outcome = 'changed' then
        update holdfast.build_routes r
        set ramped = v_ramped, ramp_percent = p_percent, changed_at = holdfast.now()
        where r.app = p_app;
    end if;
end $$;

-- End the ramp, if there is one; otherwise make the build current that was so before. Before the
-- first one there was none: then new runs are not pinned. Outcomes: 'ramp', 'changed', or 'none' if
-- none was promoted. `former` is what is left, `current` what new runs get now.
-- Locks: the app's route. Called by clients.
create or replace function holdfast.roll_back_build(
    p_app text, out outcome text, out former text, out current text
)
language plpgsql
as $$
declare
    v_route holdfast.build_routes;
    v_count int;
begin
    select * into v_route from holdfast.build_routes r where r.app = p_app for update;
    v_count := coalesce(cardinality(v_route.former), 0);
    former := coalesce(v_route.ramped, v_route.current);
    current := v_route.current;
    outcome := case when v_route.ramped is not null then 'ramp'
        when v_route.current is not null then 'changed' else 'none' end;
    if outcome = 'changed' then
        current := v_route.former[v_count];
    end if;
    if outcome <> 'none' then
        update holdfast.build_routes r
        set ramped = null, ramp_percent = 0, changed_at = holdfast.now(),
            current = roll_back_build.current, former = case outcome
                when 'changed' then v_route.former[:v_count - 1] else r.former end
        where r.app = p_app;
    end if;
end $$;
