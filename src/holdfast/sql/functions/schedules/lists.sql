-- Schedules and buckets as they are read.

-- List schedules by name, after p_after: of an app, or all; with p_name, that one; with
-- p_short_name, those with this name in any app; with p_doubtful, those that may not fire as they
-- should: their ticks cannot be computed, or they are late, or ahead of the clock. Moments are
-- microseconds, durations seconds. The next tick is null while it is not computed, and if there is
-- none. Refuses a negative limit (22023). Locks nothing. Called by clients and users.
create or replace function holdfast.list_schedules(
    p_app text default null, p_after text default null, p_limit int default 100,
    p_name text default null, p_short_name text default null,
    p_doubtful boolean default false
) returns table (
    name text, cron text, every_seconds float8, anchor bigint, timezone text, starts_at bigint,
    ends_at bigint, kind text, target text, version int, input json, queue text, priority int,
    timeout_seconds float8, retention_seconds float8, tags json, headers json, overlap text,
    catch_up_seconds float8, max_missed int, jitter_seconds float8,
    bucket_retention_seconds float8, from_code boolean, revision bigint, created_at bigint,
    updated_at bigint, note text, paused_at bigint, paused_by text, tick_position bigint,
    is_computed boolean, next_tick_at bigint, error text, last_tick_at bigint, last_run_id uuid,
    open_run_ids uuid[], buffered int, backfills int, message_group text, attributes json
)
language plpgsql stable
reset enable_seqscan
set plan_cache_mode = force_custom_plan
as $$
begin
    return query
    select s.name, s.cron, s.every, holdfast._micros(s.anchor), s.timezone,
        holdfast._micros(s.starts_at), holdfast._micros(s.ends_at), s.kind, s.target, s.version,
        s.input, s.queue, s.priority::int, s.timeout, s.retention,
        case when s.tags is not null then to_json(holdfast._tags(s.tags)) end, s.headers, s.overlap,
        s.catch_up, s.max_missed, s.jitter, s.bucket_retention, s.from_code, s.revision,
        holdfast._micros(s.created_at), holdfast._micros(s.updated_at), s.note,
        holdfast._micros(s.paused_at), s.paused_by, holdfast._micros(s.position),
        s.next_tick_at is not null, holdfast._micros(s.next_tick_at), s.error,
        holdfast._micros(s.last_tick_at), s.last_run_id, s.open_run_ids, s.buffered,
        (select count(*)::int from holdfast.schedule_backfills f
        where f.schedule = s.name and f.ended_at is null), s.message_group,
        case json_typeof(s.tags) when 'object' then s.tags -> 'attributes' end
    from holdfast.schedules s
    where (p_name is null or s.name = p_name)
        and (p_short_name is null or p_short_name in (s.name, split_part(s.name, '/', 2)))
        and (not p_doubtful or s.paused_at is null and (s.error is not null
            or s.position > holdfast.now() or coalesce(
                s.next_tick_at, greatest(s.updated_at, s.position)) < holdfast.now()))
        and (p_after is null or s.name > p_after)
        and (p_app is null or s.name >= p_app || '/' and s.name < p_app || '0')  -- 0 follows /
    order by s.name
    limit holdfast._limit(p_limit);
end $$;

-- List what the ticks of a schedule did, newest first; of ticks before a moment, in microseconds.
-- Refuses a negative limit and a far moment (22023). Locks nothing. Called by clients, users and
-- trigger_schedule.
create or replace function holdfast.list_buckets(
    p_name text, p_before bigint default null, p_limit int default 50
) returns table (
    schedule text, tick_at bigint, until bigint, ticks int, outcome text, origin text, run_id uuid,
    stopped_run_id uuid, cause text, error text, handled_at bigint, message_id bigint, reached int
)
language plpgsql stable
reset enable_seqscan
set plan_cache_mode = force_custom_plan
as $$
begin
    return query
    select b.schedule, holdfast._micros(b.tick_at), holdfast._micros(b.until), b.ticks, b.outcome,
        b.origin, b.run_id, b.stopped_run_id, b.cause, b.error, holdfast._micros(b.handled_at),
        b.message_id, b.reached
    from holdfast.schedule_buckets b
    where b.schedule = holdfast._schedule_name(p_name)
        and (p_before is null or b.tick_at < holdfast._moment(
            holdfast._check_moment('the moment', p_before)))
    order by b.tick_at desc
    limit holdfast._limit(p_limit);
end $$;
