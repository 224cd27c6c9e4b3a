-- How a worker's threads are used: how many there are, how many are taken, how many of these by
-- attempts that nobody waits for any more, and how many attempts wait for one.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (5, 'worker_threads');

alter table holdfast.workers
    add column threads int[],
    add constraint workers_threads_are_four check (cardinality(threads) = 4);

commit;
