-- Message queues: programs send messages to them and receive them from them.
--
-- messages           what waits in plain queues. Inserted and deleted, never updated.
-- filtered_messages  the same for queues whose receives may have conditions.
-- grouped_messages   what waits in FIFO queues.
-- group_tokens       "look at this group": each send to a FIFO queue brings one.
-- bodies             payloads that are too large to be moved about.
-- deliveries         what is in flight: a row a receive, of a FIFO queue a row a group.
-- deduplications     which message a deduplication id made.
-- kept_messages      what was acknowledged, in queues that keep it.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (19, 'message_queues');

create table holdfast.queues (
    queue_id int primary key generated always as identity,
    name text collate "C" not null unique,
    fifo boolean not null,
    has_priorities boolean not null,
    has_filters boolean not null,
    visibility_seconds float8 not null,
    max_receives int,
    dead_letters text collate "C",  -- the queue for what was received too often
    dedup_seconds float8 not null,
    keep_seconds float8,  -- how long acknowledged messages are kept; null: not at all
    -- A part of the keys of the groups' locks, so that two schemas do not share them.
    lock_key bigint not null
        default ('x' || substr(md5(gen_random_uuid()::text), 1, 16))::bit(64)::bigint,
    created_at timestamptz not null,
    constraint queues_name_is_plain check (
        octet_length(name) <= 128 and name ~ '^[a-zA-Z0-9._-]+$'),
    constraint queues_fifo_has_one_order check (not (fifo and (has_priorities or has_filters))),
    constraint queues_visibility_is_positive check (
        visibility_seconds > 0 and visibility_seconds <= 1e10),
    constraint queues_max_receives_is_positive check (max_receives >= 1),
    constraint queues_dead_letters_need_a_limit check (
        (max_receives is null) = (dead_letters is null)),
    constraint queues_dead_letters_are_elsewhere check (dead_letters <> name),
    constraint queues_dedup_is_a_time check (dedup_seconds between 0 and 1e10),
    constraint queues_keep_is_a_time check (keep_seconds > 0 and keep_seconds <= 1e10)
);

create sequence holdfast.message_ids;

-- The key is the order of receives: what is due next is at the front. There is no other index.
create table holdfast.messages (
    queue_id int not null,
    priority smallint not null,
    visible_at timestamptz not null,
    message_id bigint not null,
    attempts int not null default 0,
    origin_id int,  -- a dead letter: the queue that it comes from
    sent_at timestamptz not null,
    payload json,  -- null: in bodies
    headers json,
    error text,  -- why it was given back last
    primary key (queue_id, priority, visible_at, message_id),
    constraint messages_priority_in_range check (priority between 0 and 4),
    constraint messages_attempts_are_counted check (attempts >= 0)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);

-- A table of its own, because a partial index costs every send, also of what it leaves out.
-- Payloads are always in their rows.
create table holdfast.filtered_messages (
    like holdfast.messages including defaults including constraints,
    primary key (queue_id, priority, visible_at, message_id),
    constraint filtered_messages_have_payloads check (payload is not null)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
create index filtered_messages_by_content on holdfast.filtered_messages
    using gin ((payload::jsonb) jsonb_path_ops) with (fastupdate = off);

create table holdfast.grouped_messages (
    queue_id int not null,
    group_key text collate "C" not null,
    message_id bigint not null,
    visible_at timestamptz not null,
    attempts int not null default 0,
    origin_id int,
    sent_at timestamptz not null,
    payload json,
    headers json,
    error text,
    primary key (queue_id, group_key, message_id),
    constraint grouped_messages_attempts_are_counted check (attempts >= 0)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);

create table holdfast.group_tokens (
    queue_id int not null,
    visible_at timestamptz not null,
    token_id bigint not null,
    group_key text collate "C" not null,
    primary key (queue_id, visible_at, token_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);

create table holdfast.bodies (
    queue_id int not null,
    message_id bigint not null,
    payload json not null,
    primary key (queue_id, message_id)
);

-- A receipt is a delivery's id and a place in it. What was given back is not in a delivery any
-- more, so an old receipt changes nothing.
create table holdfast.deliveries (
    queue_id int not null,
    delivery_id uuid not null default gen_random_uuid(),
    group_key text collate "C",
    visible_at timestamptz not null,  -- the end of the visibility timeout
    received_at timestamptz not null,
    consumer text,
    more boolean not null default false,  -- the group has more: the end leaves a token
    has_bodies boolean not null default false,
    keeps boolean not null default false,  -- acknowledged messages are kept
    done int[],  -- places that were acknowledged or given back
    message_ids bigint[] not null,
    priorities smallint[],
    attempts int[] not null,  -- with this one
    origin_ids int[],
    sent_ats timestamptz[] not null,
    payloads json[] not null,
    headers json[],
    errors text[],
    primary key (queue_id, delivery_id),
    constraint deliveries_have_messages check (cardinality(message_ids) > 0)
) with (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
alter table holdfast.deliveries alter column payloads set storage external;
create unique index deliveries_by_group on holdfast.deliveries (queue_id, group_key)
    where group_key is not null;
-- Without the queue, so that no plan looks for a delivery through it.
create index deliveries_by_end on holdfast.deliveries (visible_at);

create table holdfast.deduplications (
    queue_id int not null,
    dedup_id text collate "C" not null,
    message_id bigint not null,
    expires_at timestamptz not null,
    primary key (queue_id, dedup_id)
);
create index deduplications_by_end on holdfast.deduplications (expires_at);

create table holdfast.kept_messages (
    queue_id int not null,
    message_id bigint not null,
    acked_at timestamptz not null,
    delete_after timestamptz not null,
    attempts int not null,
    sent_at timestamptz not null,
    group_key text collate "C",
    payload json not null,
    headers json,
    primary key (queue_id, message_id)
);
create index kept_messages_by_end on holdfast.kept_messages (delete_after);

commit;
