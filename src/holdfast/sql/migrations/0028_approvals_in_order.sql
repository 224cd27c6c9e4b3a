-- Open approvals in the order in which they are listed: the first page reads no more than a page.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (28, 'approvals_in_order');

create index tasks_approvals_in_order on holdfast.tasks (started_at, run_id, key)
    where kind = 'approval';
drop index holdfast.tasks_approvals;  -- those of one run are a range of the primary key
alter index holdfast.tasks_approvals_in_order rename to tasks_approvals;

commit;
