-- Limits of message queues: what is in flight of a queue counts for its limits. The end of such a
-- delivery makes room, so receivers that wait are told of it.
--
-- A message that waits for a limit with a key is moved out of the way of receives: its priority is 8
-- to 12, 8 more than its own. So a backlog of one value of the key is not read again by each receive.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (53, 'message_limits');

alter table holdfast.deliveries add column limited boolean;  -- null: no limit holds

-- Known here, so that receives of other queues do not look for limits.
alter table holdfast.queues add column is_limited boolean not null default false;
update holdfast.queues q set is_limited = true
where exists (
    select from holdfast.limits l
    where l.scope = 'queue' and l.name = q.name and l.kind in ('concurrency', 'rate')
        and not l.removed);

-- Where those messages are, by the limits and the values of their keys, {"limit_id": "value"}. A row
-- whose message has been cancelled or purged is deleted by the receive that finds it.
create table holdfast.limited_messages (
    queue_id int not null,
    limit_keys text collate "C" not null,
    priority smallint not null,  -- its own
    visible_at timestamptz not null,
    message_id bigint not null,
    primary key (queue_id, limit_keys, priority, visible_at, message_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);

commit;
