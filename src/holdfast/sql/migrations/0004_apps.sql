-- Apps as namespaces: a workflow's or an activity's name in a database is `app/name`.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (4, 'apps');

-- The apps whose workers have ever signed on, and the names of their workflows: what a name
-- without an app is looked up in.
create table holdfast.apps (
    app text primary key,
    workflows text[] not null,
    origin text,  -- where its code lies; told on the embedded database, which projects share
    signed_on_at timestamptz not null
);

-- Names without an app, of runs and activities from before this migration. The first app that
-- signs on with one of them takes over what has this name.
create table holdfast.former_names (
    name text primary key
);
insert into holdfast.former_names (name)
select r.name from holdfast.runs r
union
select regexp_replace(t.handler, '@[^@]*$', '') from holdfast.tasks t where t.handler <> ''
union
select p.name from holdfast.pauses p where p.scope = 'workflow';

commit;
