-- Payloads that cannot be put now: the run that they belong to waits for their object store.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (25, 'payloads_that_wait');

alter table holdfast.payload_owners
    add column failed_at timestamptz,  -- when the last try of a put failed
    add column error text,
    add constraint payload_owners_failure_has_a_cause check (
        (failed_at is null) = (error is null));

commit;
