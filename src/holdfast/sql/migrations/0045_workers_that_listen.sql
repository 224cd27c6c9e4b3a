-- If notifications reach a worker now; null for one that reads no hints, and of an earlier release.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (45, 'workers_that_listen');

alter table holdfast.workers add column listens boolean;

commit;
