-- Schedules: what starts runs at certain moments, and what each tick did.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (9, 'schedules');

-- Durations are seconds. The names are in the order of their bytes, whatever the database's order.
create table holdfast.schedules (
    name text collate "C" primary key,  -- app/name
    -- When it comes due. The database does not know cron and time zones.
    cron text,
    every float8,
    anchor timestamptz,
    timezone text not null,
    starts_at timestamptz,
    ends_at timestamptz,
    -- What a tick starts: a run of this kind, with these values.
    kind text not null,
    target text not null,
    version int,
    input json not null,
    queue text,
    priority smallint,
    timeout float8,
    retention float8,
    tags json,
    headers json,
    -- What becomes of ticks that overlap or are late.
    overlap text not null,
    catch_up float8 not null,
    max_missed int not null,
    jitter float8 not null,
    bucket_retention float8 not null,
    -- Who has defined it. The digest is that of the definition in the code.
    from_code boolean not null default false,
    code_digest text,
    revision bigint not null,  -- another number after each change of the definition
    created_at timestamptz not null,
    updated_at timestamptz not null,
    note text,
    paused_at timestamptz,
    paused_by text,
    -- Where it is. Ticks up to the position are dealt with.
    position timestamptz not null,
    next_tick_at timestamptz,  -- null: not computed since the last change; infinity: there is none
    look_at timestamptz not null,  -- when a scheduler has to look at it; infinity: never
    error text,  -- why it could not be computed
    last_tick_at timestamptz,
    last_run_id uuid,
    open_run_ids uuid[] not null default '{}',  -- that had not ended at the last tick; the newest
    buffered int not null default 0,  -- how many ticks wait for the ends of these
    constraint schedules_have_cron_or_interval check (num_nonnulls(cron, every) = 1),
    constraint schedules_kind_is_known check (kind in ('workflow', 'flow')),
    constraint schedules_overlap_is_known check (overlap in (
        'skip', 'buffer_one', 'buffer_all', 'allow', 'cancel_running', 'terminate_running')),
    constraint schedules_pause_has_a_cause check (
        (paused_at is null) = (paused_by is null) and paused_by in ('user', 'code')),
    constraint schedules_buffered_is_counted check (buffered >= 0)
) with (
    -- Every tick moves an index entry.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

create index schedules_to_look_at on holdfast.schedules (look_at) where look_at < 'infinity';
create index schedules_buffered on holdfast.schedules (name)
    where buffered > 0 and paused_at is null;

-- A row a tick. Skipped ones in a row may be one, which lasts until another moment.
create table holdfast.schedule_buckets (
    schedule text collate "C" not null,
    tick_at timestamptz not null,
    until timestamptz,
    ticks int,  -- null: not counted
    outcome text not null,
    origin text not null,
    run_id uuid,
    stopped_run_id uuid,
    cause text,
    error text,
    handled_at timestamptz not null,
    delete_after timestamptz not null,
    primary key (schedule, tick_at),
    constraint schedule_buckets_outcome_is_known check (
        outcome in ('started', 'buffered', 'skipped', 'failed')),
    constraint schedule_buckets_origin_is_known check (
        origin in ('tick', 'trigger', 'backfill')),
    constraint schedule_buckets_cause_is_known check (
        cause in ('overlap', 'replaced', 'too_late', 'too_many', 'buffer_full')),
    constraint schedule_buckets_started_has_a_run check (
        (outcome = 'started') = (run_id is not null)),
    constraint schedule_buckets_skipped_has_a_cause check (
        (outcome = 'skipped') = (cause is not null)),
    constraint schedule_buckets_failed_has_an_error check (
        (outcome = 'failed') = (error is not null))
);

create index schedule_buckets_buffered on holdfast.schedule_buckets (schedule, tick_at)
    where outcome = 'buffered';
create index schedule_buckets_by_delete_after on holdfast.schedule_buckets (delete_after)
    where outcome <> 'buffered';

-- Ranges of ticks that were asked for, and are not dealt with yet.
create table holdfast.schedule_backfills (
    backfill_id uuid primary key,
    schedule text collate "C" not null,
    overlap text not null,
    position timestamptz not null,  -- ticks up to it are dealt with
    last_at timestamptz not null,
    look_at timestamptz not null,
    created_at timestamptz not null,
    ended_at timestamptz,  -- kept for a day, for calls that are repeated
    constraint schedule_backfills_overlap_is_known check (overlap in (
        'skip', 'buffer_one', 'buffer_all', 'allow', 'cancel_running', 'terminate_running'))
);
create index schedule_backfills_to_look_at on holdfast.schedule_backfills (look_at)
    where ended_at is null;
create index schedule_backfills_by_schedule on holdfast.schedule_backfills (schedule);

-- Which sets of schedules the code of an app has had, and which of them workers still have.
create table holdfast.schedule_sets (
    app text not null,
    digest text not null,
    adopted_at timestamptz not null,
    heard_at timestamptz not null,
    is_current boolean not null,
    primary key (app, digest)
);
create unique index schedule_sets_one_is_current on holdfast.schedule_sets (app) where is_current;

-- A tick on its way: what it finds, and what becomes of it.
create type holdfast._tick as (
    schedule text, tick_at timestamptz, origin text, overlap text,
    open_run_ids uuid[], buffered int,
    outcome text, cause text, run_id uuid, stopped_run_id uuid, error text
);

commit;
