-- The tasks that workers in SQL have read, by the numbers that they are given: few, and found at once.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (32, 'read_tasks');

alter table holdfast.tasks add column message_id bigint;  -- null until it is read

create index tasks_read on holdfast.tasks (message_id)
    where message_id is not null and worker is null;

commit;
