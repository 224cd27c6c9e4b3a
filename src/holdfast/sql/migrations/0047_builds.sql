-- Builds: which code a run of a pinned workflow stays with. The handler of its turn ends in
-- `+build` (`shop/checkout@1+a81f`), and only workers of that build have such a handler.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (47, 'builds');

create table holdfast.builds (
    app text not null,
    build text not null,
    pinned text[] not null,  -- the handlers of its pinned workflows, app/name@version
    seen_at timestamptz not null,  -- when a worker of it first signed on
    signed_on_at timestamptz,  -- when one did last; null: it was promoted before any
    primary key (app, build),
    constraint builds_have_a_name check (build ~ '^[a-zA-Z0-9][a-zA-Z0-9._+-]{0,127}$')
);

create table holdfast.build_routes (  -- what new runs of an app's pinned workflows get
    app text primary key,
    current text,  -- null: new runs are not pinned
    former text[] not null default '{}',  -- what was current before, the last of them last
    ramped text,  -- a share of new runs gets this one
    ramp_percent float8 not null default 0,
    changed_at timestamptz not null,
    constraint build_routes_ramp_in_range check (ramp_percent between 0 and 100)
);

alter table holdfast.runs add column build text;

-- What is left of a build: its open runs, by app.
create index runs_by_build on holdfast.runs (build, run_id) include (name)
    where build is not null and status = 'running';

commit;
