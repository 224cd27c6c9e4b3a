-- The longest period of a throttle's rules: so long its slots count, whatever the rules are by then.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (33, 'throttle_periods');

alter table holdfast.start_keys add column period interval;  -- of a throttle

commit;
