-- Schedules that users make, change, pause and delete. Their names are app/name; the app may be
-- left out where only one has such a schedule.

-- Create a schedule in the caller's transaction: `select holdfast.create_schedule('shop/nightly',
-- 'shop/report', p_cron => '0 3 * * *', p_timezone => 'Europe/Berlin')`. Its first tick is after
-- now. Returns false if the name is taken. Moments are microseconds, durations seconds, tags a JSON
-- array. A worker computes the ticks; what is wrong with an expression stands in list_schedules.
--
-- p_kind is 'workflow' or 'flow': p_target is what each tick starts, and p_overlap is 'skip' unless
-- given. Or it is 'topic' or 'queue': p_target is the topic to which each tick publishes, or the
-- message queue to which it sends, p_input the payload. Such a schedule starts no run, so p_overlap
-- can only be 'allow', and what belongs to runs is refused. A message may have p_priority,
-- p_headers and, in a FIFO queue, p_message_group, by default the name of the schedule.
--
-- Refuses a message queue that does not exist (HFQ01) and other values that are not allowed (22004,
-- 22023).
-- Locks: the name that it inserts. Called by clients and users.
create or replace function holdfast.create_schedule(
    p_name text,
    p_target text,
    p_cron text default null,
    p_every_seconds float8 default null,
    p_timezone text default 'UTC',
    p_input json default 'null',
    p_kind text default 'workflow',
    p_overlap text default null,
    p_catch_up_seconds float8 default 86400,
    p_max_missed int default 1,
    p_jitter_seconds float8 default 0,
    p_starts_at bigint default null,
    p_ends_at bigint default null,
    p_anchor bigint default null,
    p_version int default null,
    p_queue text default null,
    p_priority int default null,
    p_timeout_seconds float8 default null,
    p_retention_seconds float8 default null,
    p_tags json default null,
    p_headers json default null,
    p_bucket_retention_seconds float8 default 2592000,
    p_note text default null,
    p_paused boolean default false,
    p_message_group text default null
) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_new holdfast.schedules;
begin
    v_new := holdfast._schedule_of(p_name, p_target, p_cron, p_every_seconds, p_timezone,
        p_input, p_kind, p_overlap, p_catch_up_seconds, p_max_missed, p_jitter_seconds,
        p_starts_at, p_ends_at, p_anchor, p_version, p_queue, p_priority, p_timeout_seconds,
        p_retention_seconds, p_tags, p_headers, p_bucket_retention_seconds, p_message_group);
    perform holdfast._check_text('a note', p_note);
    perform holdfast._check_given('paused', p_paused is not null);
    v_new.note := p_note;
    if p_paused then
        v_new.paused_at := v_new.created_at;
        v_new.paused_by := 'user';
        v_new.look_at := 'infinity';
    end if;
    insert into holdfast.schedules select v_new.* on conflict do nothing;
    if not found then
        return false;
    end if;
    perform holdfast._tell_schedulers(v_new.name);
    return true;
end $$;

-- Replace the definition of a schedule: the parameters are those of create_schedule, and those that
-- are left out have its defaults. With a revision, only if the schedule has it. Returns false if
-- it has not, or if there is no such schedule. If the ticks change, the next one is after now.
-- Refuses what create_schedule does.
-- Locks: the schedule. Called by clients and users.
create or replace function holdfast.update_schedule(
    p_name text,
    p_target text,
    p_cron text default null,
    p_every_seconds float8 default null,
    p_timezone text default 'UTC',
    p_input json default 'null',
    p_kind text default 'workflow',
    p_overlap text default null,
    p_catch_up_seconds float8 default 86400,
    p_max_missed int default 1,
    p_jitter_seconds float8 default 0,
    p_starts_at bigint default null,
    p_ends_at bigint default null,
    p_anchor bigint default null,
    p_version int default null,
    p_queue text default null,
    p_priority int default null,
    p_timeout_seconds float8 default null,
    p_retention_seconds float8 default null,
    p_tags json default null,
    p_headers json default null,
    p_bucket_retention_seconds float8 default 2592000,
    p_note text default null,
    p_revision bigint default null,
    p_message_group text default null
) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_new holdfast.schedules;
begin
    v_new := holdfast._schedule_of(holdfast._schedule_name(p_name), p_target, p_cron,
        p_every_seconds, p_timezone, p_input, p_kind, p_overlap, p_catch_up_seconds, p_max_missed,
        p_jitter_seconds, p_starts_at, p_ends_at, p_anchor, p_version, p_queue, p_priority,
        p_timeout_seconds, p_retention_seconds, p_tags, p_headers, p_bucket_retention_seconds,
        p_message_group);
    perform holdfast._check_text('a note', p_note);
    v_new.note := p_note;
    if not holdfast._redefine(v_new, p_revision) then
        return false;
    end if;
    perform holdfast._tell_schedulers(v_new.name);
    return true;
end $$;

-- Return a new schedule of these values, which are those of create_schedule. Refuses values that
-- are not allowed (22004, 22023), and a message queue that does not exist (HFQ01). Locks nothing.
-- Called by create_schedule and update_schedule.
create or replace function holdfast._schedule_of(
    p_name text, p_target text, p_cron text, p_every float8, p_timezone text, p_input json,
    p_kind text, p_overlap text, p_catch_up float8, p_max_missed int, p_jitter float8,
    p_starts_at bigint, p_ends_at bigint, p_anchor bigint, p_version int, p_queue text,
    p_priority int, p_timeout float8, p_retention float8, p_tags json, p_headers json,
    p_bucket_retention float8, p_message_group text
) returns holdfast.schedules
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_now timestamptz := holdfast.now();
    v_sends boolean := p_kind in ('topic', 'queue');
    v_target text := case when v_sends then p_target
        when p_kind = 'workflow' then holdfast.full_name(p_target)
        else holdfast._full_slug(p_target) end;
    v_new holdfast.schedules;
begin
    v_new.name := case when strpos(p_name, '/') = 0 and strpos(v_target, '/') > 0
        then split_part(v_target, '/', 1) || '/' || p_name else p_name end;
    v_new.cron := p_cron;
    v_new.every := p_every;
    v_new.anchor := holdfast._moment(holdfast._check_moment('an anchor', p_anchor));
    v_new.timezone := p_timezone;
    v_new.starts_at := holdfast._moment(holdfast._check_moment('a start', p_starts_at));
    v_new.ends_at := holdfast._moment(holdfast._check_moment('an end', p_ends_at));
    v_new.kind := p_kind;
    v_new.target := v_target;
    v_new.version := p_version;
    v_new.input := p_input;
    v_new.queue := p_queue;
    perform holdfast._check_priority(p_priority);
    v_new.priority := p_priority;
    v_new.message_group := p_message_group;
    v_new.timeout := p_timeout;
    v_new.retention := p_retention;
    v_new.tags := p_tags;
    v_new.headers := p_headers;
    v_new.overlap := coalesce(p_overlap, case when v_sends then 'allow' else 'skip' end);
    v_new.catch_up := p_catch_up;
    v_new.max_missed := p_max_missed;
    v_new.jitter := p_jitter;
    v_new.bucket_retention := p_bucket_retention;
    perform holdfast._check_given('the input', p_input is not null);
    perform holdfast._check_schedule(v_new);
    if p_kind = 'queue' and not exists (
        select from holdfast.queues q where q.name = p_target)
    then
        perform holdfast._no_queue(p_target);
    end if;
    return holdfast._begun(v_new, v_now);
end $$;

-- Return a schedule that begins now: it has not been computed. Locks nothing. Called by
-- _schedule_of and _write_code.
create or replace function holdfast._begun(p_new holdfast.schedules, p_now timestamptz)
returns holdfast.schedules
language plpgsql volatile
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_new holdfast.schedules := p_new;
begin
    v_new.from_code := coalesce(p_new.from_code, false);
    v_new.revision := holdfast._micros(clock_timestamp());  -- not that of one of this name before
    v_new.created_at := p_now;
    v_new.updated_at := p_now;
    v_new.position := p_now;
    v_new.look_at := p_now;
    v_new.open_run_ids := '{}';
    v_new.buffered := 0;
    return v_new;
end $$;

-- Replace the definition of a schedule by that of p_new, if it has this revision; null for any.
-- Returns false if it has not. Ticks that are due stay due if the moments of ticks do not change.
-- Locks: the schedule. Called by update_schedule and _write_code.
create or replace function holdfast._redefine(
    p_new holdfast.schedules, p_revision bigint default null
) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_is_new boolean;
begin
    select (s.cron, s.every, s.anchor, s.timezone, s.starts_at, s.ends_at)
        is distinct from (p_new.cron, p_new.every, p_new.anchor, p_new.timezone,
            p_new.starts_at, p_new.ends_at)
    into v_is_new
    from holdfast.schedules s
    where s.name = p_new.name and s.revision = coalesce(p_revision, s.revision)
    for update;
    if not found then
        return false;
    end if;
    update holdfast.schedules s
    set cron = p_new.cron, every = p_new.every, anchor = p_new.anchor, timezone = p_new.timezone,
        starts_at = p_new.starts_at, ends_at = p_new.ends_at, kind = p_new.kind,
        target = p_new.target, version = p_new.version, input = p_new.input, queue = p_new.queue,
        priority = p_new.priority, timeout = p_new.timeout, retention = p_new.retention,
        tags = p_new.tags, headers = p_new.headers, overlap = p_new.overlap,
        catch_up = p_new.catch_up, max_missed = p_new.max_missed, jitter = p_new.jitter,
        bucket_retention = p_new.bucket_retention, message_group = p_new.message_group,
        note = coalesce(p_new.note, s.note),
        code_digest = coalesce(p_new.code_digest, s.code_digest),
        revision = s.revision + 1, updated_at = p_new.updated_at,
        position = case when v_is_new then p_new.position else s.position end,
        next_tick_at = case when v_is_new then null else s.next_tick_at end,
        error = case when v_is_new then null else s.error end,
        look_at = case when s.paused_at is not null then 'infinity'
            when v_is_new or s.error is not null then p_new.look_at
            else coalesce(s.next_tick_at, p_new.look_at) end
    where s.name = p_new.name;
    return true;
end $$;

-- Delete a schedule, its buckets and its backfills. Runs that it has started continue. Returns
-- false if there is no such schedule.
-- Locks: the schedule; its buckets and backfills. Called by clients and users.
create or replace function holdfast.delete_schedule(p_name text) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_name text := holdfast._schedule_name(p_name);
begin
    delete from holdfast.schedules s where s.name = v_name;
    if not found then
        return false;
    end if;
    delete from holdfast.schedule_buckets b where b.schedule = v_name;
    delete from holdfast.schedule_backfills f where f.schedule = v_name;
    return true;
end $$;

-- Pause a schedule: its ticks do not fire, and those that are buffered do not start, unless they
-- were asked for. Returns false if it was paused before, which changes the note if there is one,
-- and null if there is no such schedule. Refuses a note that is too long (22023).
-- Locks: the schedule. Called by clients and users.
create or replace function holdfast.pause_schedule(p_name text, p_note text default null)
returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_name text := holdfast._schedule_name(p_name);
    v_paused_by text;
begin
    perform holdfast._check_text('a note', p_note);
    select s.paused_by into v_paused_by from holdfast.schedules s where s.name = v_name for update;
    if not found then
        return null;
    end if;
    update holdfast.schedules s
    set paused_at = coalesce(s.paused_at, holdfast.now()), paused_by = 'user',
        note = coalesce(p_note, s.note), next_tick_at = null, look_at = 'infinity'
    where s.name = v_name;
    return v_paused_by is null;
end $$;

-- Resume a schedule: its next tick is after now, also if it has fired ticks that are ahead by more
-- than a minute, because the server's clock was set back: what was due before the pause, or in it,
-- does not fire. Returns false if it was not paused, and null if there is no such schedule.
-- Locks: the schedule. Called by clients and users.
create or replace function holdfast.resume_schedule(p_name text) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_name text := holdfast._schedule_name(p_name);
    v_now timestamptz := holdfast.now();
begin
    update holdfast.schedules s
    set paused_at = null, paused_by = null, note = null,
        position = case when s.position > v_now + interval '1 minute' then v_now
            else greatest(s.position, v_now) end,
        next_tick_at = null, look_at = v_now, error = null
    where s.name = v_name and s.paused_at is not null;
    if found then
        perform holdfast._tell_schedulers(v_name);
        return true;
    end if;
    return (select false from holdfast.schedules s where s.name = v_name);
end $$;
