-- The queue, the priority and the time limit that code declares, beside the retention: starts that
-- have only a name leave them out, and find them here. The table keeps its name: calls of the
-- release before may be under way.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (51, 'declared_options');

alter table holdfast.declared_retentions
    add column queue text,  -- null: declared by a worker of an earlier release
    add column priority int,
    add column timeout_seconds float8,  -- null: no limit
    add constraint declared_retentions_priority_in_range check (priority between 0 and 4),
    add constraint declared_retentions_timeout_in_range check (timeout_seconds between 0 and 1e10);

commit;
