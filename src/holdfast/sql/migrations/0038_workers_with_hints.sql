-- If hints of new work reach a worker now, which Redis carries; null for one that reads none, and of
-- an earlier release.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (38, 'workers_with_hints');

alter table holdfast.workers add column hints boolean;

commit;
