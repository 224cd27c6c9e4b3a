-- Apps: namespaces of workflows and activities, whose names in the tables are `app/name`.

-- List the apps that have ever signed on, by name. Called by clients.
create or replace function holdfast.list_apps()
returns table (app text, workflows text[], origin text, signed_on_at bigint)
language sql stable
as $$
    select a.app, a.workflows, a.origin, holdfast._micros(a.signed_on_at)
    from holdfast.apps a order by a.app
$$;

-- List the names that runs had before names had apps. Called by clients.
create or replace function holdfast.former_names() returns text[]
language sql stable
as $$
    select array(select f.name from holdfast.former_names f order by f.name)
$$;

-- Sign an app on: add its workflows to those that it ever had. `other` is the origin that is
-- recorded for the app. It is returned, and nothing is written, if it and p_origin are both known
-- and different, and p_replaces is not it. `former` are those of the app's names that runs had
-- before names had apps. If the database has such names, these are all names of the app: programs
-- of an earlier release may still run and start more of them.
-- Locks: the app's row; former names, by name; rows of pauses. Called by workers.
create or replace function holdfast.sign_on_app(
    p_app text, p_workflows text[], p_activities text[], p_origin text default null,
    p_replaces text default null, out other text, out former text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    insert into holdfast.apps as a (app, workflows, origin, signed_on_at)
    values (p_app, p_workflows, p_origin, holdfast.now())
    on conflict (app) do update
    set workflows = array(
            select distinct w.name from unnest(a.workflows || excluded.workflows) as w (name)
            order by w.name),
        origin = coalesce(excluded.origin, a.origin), signed_on_at = excluded.signed_on_at
    where excluded.origin is null or a.origin is null or a.origin in (excluded.origin, p_replaces);
    if not found then
        select a.origin into other from holdfast.apps a where a.app = p_app;
        return;
    end if;
    insert into holdfast.former_names (name)
    select n.name from unnest(p_workflows || p_activities) as n (name)
    where exists (select from holdfast.former_names)
    order by n.name
    on conflict do nothing;
    former := array(
        select f.name from holdfast.former_names f
        where f.name = any (p_workflows || p_activities) order by f.name);
    if cardinality(former) > 0 then
        update holdfast.pauses p set name = p_app || '/' || p.name
        where p.scope = 'workflow' and p.name = any (p_workflows) and not exists (
            select from holdfast.pauses o
            where o.scope = 'workflow' and o.name = p_app || '/' || p.name);
        delete from holdfast.pauses p  -- those that are paused under both names
        where p.scope = 'workflow' and p.name = any (p_workflows);
    end if;
end $$;

-- Take over tasks with former names, which a worker of the app serves: turns with their runs, and
-- activities, at most p_limit. Returns how many tasks.
-- Locks: turn rows by run_id, then other task rows by (run_id, key), then runs. Called by workers
-- that sign on, and by maintenance.
create or replace function holdfast.adopt_tasks(
    p_app text, p_handlers text[], p_queues text[], p_limit int
) returns int
language plpgsql
as $$
declare
    v_run_ids uuid[];
    v_keys text[];
    v_count int;
begin
    select array_agg(t.run_id), array_agg(t.key) into v_run_ids, v_keys
    from (
        select t.run_id, t.key
        from unnest(p_queues) as q (queue), unnest(p_handlers) as h (handler)
        cross join lateral (
            (select t.run_id, t.key from holdfast.tasks t
            where t.queue = q.queue and t.handler = h.handler and t.worker is null limit p_limit)
            union all
            (select t.run_id, t.key from holdfast.tasks t
            where t.queue = q.queue and t.handler = h.handler and t.worker is not null
            limit p_limit)
        ) as t
        limit p_limit
    ) as t;
    perform holdfast._lock_turns(array(select distinct unnest(v_run_ids)));
    perform holdfast._lock_tasks(v_run_ids, v_keys);
    with adopted as (
        update holdfast.tasks t set handler = p_app || '/' || t.handler
        from unnest(v_run_ids, v_keys) as u (run_id, key)
        where t.run_id = u.run_id and t.key = u.key and t.handler = any (p_handlers)
        returning t.run_id, t.kind
    ), named as (
        update holdfast.runs r set name = p_app || '/' || r.name
        from adopted a
        where a.kind = 'workflow' and r.run_id = a.run_id
    )
    select count(*) into v_count from adopted;
    return v_count;
end $$;

-- Rename ended runs with former names that the app has taken over, at most p_limit. Returns how
-- many.
-- Locks: runs, skipping locked ones. Called by maintenance.
create or replace function holdfast.adopt_ended(p_app text, p_workflows text[], p_limit int)
returns int
language plpgsql
as $$
declare
    v_count int;
begin
    with found as materialized (
        select r.ctid from holdfast.runs r
        where r.name = any (p_workflows) and r.status <> 'running'
        limit p_limit
        for update skip locked
    )
    update holdfast.runs r set name = p_app || '/' || r.name
    from found f
    where r.ctid = f.ctid;
    get diagnostics v_count = row_count;
    return v_count;
end $$;
