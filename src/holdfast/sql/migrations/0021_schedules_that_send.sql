-- Schedules that start no run: they publish to a topic, or send to a message queue.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (21, 'schedules_that_send');

-- The input is the payload then. The group is that of a message to a FIFO queue.
alter table holdfast.schedules
    add column message_group text,
    drop constraint schedules_kind_is_known,
    add constraint schedules_kind_is_known check (
        kind in ('workflow', 'flow', 'topic', 'queue')),
    add constraint schedules_that_send_allow_overlap check (
        kind in ('workflow', 'flow') or overlap = 'allow');

-- What a tick has sent: the message, or how many targets the event has reached.
alter table holdfast.schedule_buckets
    add column message_id bigint,
    add column reached int,
    drop constraint schedule_buckets_outcome_is_known,
    add constraint schedule_buckets_outcome_is_known check (
        outcome in ('started', 'sent', 'buffered', 'skipped', 'failed')),
    add constraint schedule_buckets_sent_says_what check (
        num_nonnulls(message_id, reached) = (outcome = 'sent')::int);

alter type holdfast._tick add attribute message_id bigint, add attribute reached int;

commit;
