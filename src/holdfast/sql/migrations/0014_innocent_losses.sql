-- Which tasks have lost their worker although they did not cause that.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (14, 'innocent_losses');

-- The attempt counts until another worker takes the lease over: its holder may still end it.
alter table holdfast.tasks
    add column innocent boolean not null default false;  -- an activity's or a step's

commit;
