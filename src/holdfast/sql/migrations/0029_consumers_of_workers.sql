-- From which message queues a worker's consumers receive; null for a worker of an earlier release,
-- which does not say so.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (29, 'consumers_of_workers');

alter table holdfast.workers add column consumes text[];

commit;
