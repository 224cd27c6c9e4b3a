-- How often in a row a run was stuck: the process that counts must not be the one that ends by it.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (31, 'stuck_tries');

alter table holdfast.tasks
    add column stuck_tries smallint not null default 0;

commit;
