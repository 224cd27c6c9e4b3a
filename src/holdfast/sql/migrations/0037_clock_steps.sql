-- Moments that a worker has seen, and that are ahead again: the clock was set back.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (37, 'clock_steps');

create table holdfast.clock_steps (
    ahead timestamptz primary key
);

commit;
