-- Limits of message queues: what is in flight of a queue counts for its limits. The end of such a
-- delivery makes room, so receivers that wait are told of it.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (53, 'message_limits');

alter table holdfast.deliveries add column limited boolean;  -- null: no limit holds

commit;
