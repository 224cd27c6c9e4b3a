-- The values of keys for which messages wait for limits: a receive looks at those that rates may
-- allow by now, not at all.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (54, 'limited_groups');

create table holdfast.limited_groups (
    queue_id int not null,
    limit_keys text collate "C" not null,  -- as in limited_messages
    allowed_at timestamptz not null,  -- no rate allows one before; -infinity: not known
    primary key (queue_id, limit_keys)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
create index limited_groups_by_time
    on holdfast.limited_groups (queue_id, allowed_at, limit_keys);

insert into holdfast.limited_groups (queue_id, limit_keys, allowed_at)
select distinct k.queue_id, k.limit_keys, '-infinity'::timestamptz
from holdfast.limited_messages k;

commit;
