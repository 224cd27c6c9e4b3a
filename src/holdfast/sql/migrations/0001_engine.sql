-- The engine's tables.
--
-- runs     one row a durable execution: what it was started with and how it ended. Cold.
-- events   every run's append-only log. Its primary key decides who appended: the first
--          insert of (run_id, idx). Never updated.
-- tasks    everything that waits for a worker or a moment, one row each. Small and hot.
-- workers  who is alive and what it can run.
-- waiters  who is to be told of which run's end. Unlogged: a lost row costs a late answer.
--
-- One transaction, applied once: `psql --file` will do, and a second time is a duplicate key.
-- The bare word holdfast is the schema, which may get another name; what is quoted stays.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

create schema if not exists holdfast;

create table if not exists holdfast.schema_migrations (
    version int primary key,
    name text not null,
    applied_at timestamptz not null default clock_timestamp()
);

insert into holdfast.schema_migrations (version, name) values (1, 'engine');

-- The repeatable functions as last applied: those that a later release no longer has are dropped.
create table holdfast.schema_functions (
    signature text primary key,
    checksum text not null,  -- of all files together
    release text not null,
    applied_at timestamptz not null default clock_timestamp()
);

-- Payloads are json, not jsonb: jsonb reorders keys and rewrites numbers, and a replay must see
-- what the live run saw. Filters by containment cast.
create table holdfast.runs (
    run_id uuid primary key,
    kind text not null default 'workflow',
    name text not null,
    version int not null,
    key text,
    queue text not null,
    priority smallint not null,
    status text not null default 'running',
    input json not null,
    output json,
    error json,
    parent_run_id uuid,
    parent_key text,
    tags text[] not null default '{}',
    headers json,
    retention interval,
    deadline_at timestamptz,
    created_at timestamptz not null,
    started_at timestamptz,
    completed_at timestamptz,
    delete_after timestamptz,
    constraint runs_kind_is_known check (kind in ('workflow', 'flow')),
    constraint runs_status_is_known check (status in (
        'running', 'completed', 'failed', 'cancelled', 'timed_out', 'terminated', 'continued')),
    constraint runs_priority_in_range check (priority between 0 and 4),
    constraint runs_end_has_a_moment check ((status = 'running') = (completed_at is null)),
    constraint runs_output_means_completed check (
        output is null or status in ('completed', 'continued')),
    constraint runs_error_means_failed check (error is null or status = 'failed')
);

-- Listings: newest first, by name and by status. The run id breaks ties, so cursors are stable.
create index runs_by_name on holdfast.runs (name, created_at, run_id);
create index runs_by_status on holdfast.runs (status, created_at, run_id);
create index runs_by_parent on holdfast.runs (parent_run_id) where parent_run_id is not null;
create index runs_by_deadline on holdfast.runs (deadline_at)
    where deadline_at is not null and status = 'running';
create index runs_by_delete_after on holdfast.runs (delete_after) where delete_after is not null;

create table holdfast.events (
    run_id uuid not null,
    idx int not null,
    event_type text not null,
    key text,
    details json,
    at timestamptz not null,
    commit_token uuid,  -- on the first event of a worker's commit, and on no other
    primary key (run_id, idx),
    constraint events_idx_counts_from_zero check (idx >= 0)
);

-- A signal id is delivered once to a run.
create unique index events_signal_once on holdfast.events (run_id, key)
    where event_type = 'SignalReceived' and key is not null;
-- "What happened in the last 30 seconds" across all runs: a few bytes an event.
create index events_by_time on holdfast.events using brin (at) with (pages_per_range = 32);

-- Leased means `worker is not null`, whatever visible_at says; visible_at is then the lease's
-- end. Otherwise it is the moment from which the task may be claimed, 'infinity' for never.
create table holdfast.tasks (
    run_id uuid not null,
    key text not null default '',
    kind text not null default 'workflow',
    queue text not null,
    handler text not null,  -- name@version
    priority smallint not null,
    visible_at timestamptz not null,
    attempts int not null default 0,  -- claims since the run last made progress
    lease_no int not null default 0,  -- counts leases, never reset
    claimed_idx int not null default 0,  -- the log's length when it was last claimed
    worker text,
    sticky_worker text,  -- has the run in its cache
    paused boolean not null default false,
    awaiting text[],  -- names of the signals that wake it
    payload json,
    started_at timestamptz,  -- the first claim
    stuck text,  -- why the last try gave up
    primary key (run_id, key),
    constraint tasks_kind_is_known check (kind in (
        'workflow', 'activity', 'step', 'approval', 'deadline', 'deliver')),
    constraint tasks_priority_in_range check (priority between 0 and 4),
    constraint tasks_lease_has_a_number check (worker is null or lease_no > 0),
    constraint tasks_attempts_are_counted check (attempts >= 0)
) with (
    -- Every update moves an index entry, so dead entries come as fast as work does.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Free and leased tasks apart: the dead entries that leases leave behind, one for every task that
-- was ever claimed, would lie between what is due now and what comes due next.
create index tasks_due on holdfast.tasks (queue, handler, priority, visible_at)
    where worker is null;
create index tasks_leased on holdfast.tasks (queue, handler, priority, visible_at)
    where worker is not null;

create table holdfast.workers (
    worker_id text primary key,
    hostname text not null,
    pid int not null,
    queues text[] not null,
    handlers text[] not null,
    concurrency int not null,
    holdfast_version text not null,
    started_at timestamptz not null,
    heard_at timestamptz not null
);

create unlogged table holdfast.waiters (
    run_id uuid not null,
    topic text not null,
    primary key (run_id, topic)
);
create index waiters_by_topic on holdfast.waiters (topic);

commit;
