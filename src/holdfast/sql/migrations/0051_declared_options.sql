-- The queue, the priority and the time limit that code declares, beside the retention: starts that
-- have only a name leave them out, and find them here.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (51, 'declared_options');

alter table holdfast.declared_retentions rename to declared_options;
alter index holdfast.declared_retentions_pkey rename to declared_options_pkey;
alter table holdfast.declared_options rename column seconds to retention_seconds;
alter table holdfast.declared_options
    rename constraint declared_retentions_version_is_positive to declared_options_version_is_positive;
alter table holdfast.declared_options
    rename constraint declared_retentions_seconds_in_range to declared_options_retention_in_range;
alter table holdfast.declared_options
    add column queue text,  -- null: declared by a worker of an earlier release
    add column priority int,
    add column timeout_seconds float8,  -- null: no limit
    add constraint declared_options_priority_in_range check (priority between 0 and 4),
    add constraint declared_options_timeout_in_range check (timeout_seconds between 0 and 1e10);

commit;
