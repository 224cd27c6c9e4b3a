-- Ticks of backfills that were cancelled while they waited.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (16, 'cancelled_backfills');

alter table holdfast.schedule_buckets
    drop constraint schedule_buckets_cause_is_known,
    add constraint schedule_buckets_cause_is_known check (
        cause in ('overlap', 'replaced', 'too_late', 'too_many', 'buffer_full', 'cancelled'));

commit;
