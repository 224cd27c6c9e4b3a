-- Apps: namespaces of workflows and activities, whose names in the tables are `app/name`.

-- List the apps that have ever signed on, by name. Called by clients.
create or replace function holdfast.list_apps()
returns table (app text, workflows text[], origin text, signed_on_at bigint)
language sql stable
as $$
    select a.app, a.workflows, a.origin, holdfast._micros(a.signed_on_at)
    from holdfast.apps a order by a.app
$$;

-- Return the names of runs that have no app: since the first release there are none. Called by
-- clients of an earlier release.
create or replace function holdfast.former_names() returns text[]
language sql immutable
return '{}'::text[];

-- Return 0: there is nothing to take over any more. Called by workers of an earlier release.
create or replace function holdfast.adopt_tasks(
    p_app text, p_handlers text[], p_queues text[], p_limit int
) returns int
language sql immutable
return 0;

-- Return 0, as adopt_tasks. Called by workers of an earlier release.
create or replace function holdfast.adopt_ended(p_app text, p_workflows text[], p_limit int)
returns int
language sql immutable
return 0;

-- Sign an app on: add its workflows to those that it ever had. `other` is the origin that is
-- recorded for the app. It is returned, and nothing is written, if it and p_origin are both known
-- and different, and p_replaces is not it. The time of the last sign-on never goes back: by that
-- workers know a database that was set back. Workers of an earlier release give p_activities, and
-- read `former`, which is null.
-- Locks: the app's row. Called by workers.
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
        origin = coalesce(excluded.origin, a.origin),
        signed_on_at = greatest(a.signed_on_at, excluded.signed_on_at)
    where excluded.origin is null or a.origin is null or a.origin in (excluded.origin, p_replaces);
    if not found then
        select a.origin into other from holdfast.apps a where a.app = p_app;
    end if;
end $$;
