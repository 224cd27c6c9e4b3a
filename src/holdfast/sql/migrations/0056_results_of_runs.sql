-- Results that transactions leave beside their data say of which engine they are, and of which run:
-- the id of a run comes again if its key is used again, and may come in two engines. The moment of
-- this row is that of the engine. Runs that began before it have the keys of before.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (56, 'results_of_runs');

commit;
