-- How long ended runs of a workflow or a flow are kept, as its code says. Starts that do not say so
-- look here.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (15, 'declared_retentions');

create table holdfast.declared_retentions (
    name text primary key,  -- app/name
    version int not null,  -- of the code that declared it
    seconds float8 not null,
    constraint declared_retentions_version_is_positive check (version > 0),
    constraint declared_retentions_seconds_in_range check (seconds between 0 and 1e10)
);

commit;
