-- Schedules as values: they are checked before they are written.

-- Refuse a schedule that has a value which is not allowed (22004, 22023). Whether its expression
-- and its time zone mean anything, only a scheduler knows. Called by all that write definitions.
create or replace function holdfast._check_schedule(p_new holdfast.schedules) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_schedule_name(p_new.name);
    if num_nonnulls(p_new.cron, p_new.every) <> 1 then
        raise invalid_parameter_value using message = format(
            'schedule %s needs a cron expression or an interval, and not both', p_new.name);
    end if;
    if not coalesce(p_new.every between 1 and 1e10, true) then
        raise invalid_parameter_value using message = format(
            'an interval is 1 to 10,000,000,000 seconds, not %s', p_new.every);
    end if;
    perform holdfast._check_text('a cron expression', p_new.cron);
    perform holdfast._check_given('a time zone', p_new.timezone is not null);
    perform holdfast._check_id('a time zone', p_new.timezone);
    perform holdfast._check_text('a note', p_new.note);
    perform holdfast._check_schedule_target(p_new);
    perform holdfast._check_overlap(p_new.overlap);
    perform holdfast._check_given('a catch-up window', p_new.catch_up is not null);
    perform holdfast._check_seconds('a catch-up window', p_new.catch_up);
    perform holdfast._check_given('a jitter', p_new.jitter is not null);
    perform holdfast._check_seconds('a jitter', p_new.jitter);
    perform holdfast._check_given('a retention of buckets', p_new.bucket_retention is not null);
    perform holdfast._check_seconds('a retention of buckets', p_new.bucket_retention);
    if (p_new.max_missed between 0 and 1000) is not true then
        raise invalid_parameter_value using message = format(
            'at most 0 to 1,000 missed ticks are made up for, not %s',
            coalesce(p_new.max_missed::text, 'null'));
    end if;
    if p_new.ends_at < p_new.starts_at then
        raise invalid_parameter_value using message = format(
            'schedule %s ends before it starts', p_new.name);
    end if;
end $$;

-- Refuse a target that cannot be started (22004, 22023). Called by _check_schedule.
create or replace function holdfast._check_schedule_target(p_new holdfast.schedules)
returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('a kind', p_new.kind is not null);
    if p_new.kind in ('topic', 'queue') then
        perform holdfast._check_sender(p_new);
        return;
    end if;
    if p_new.kind not in ('workflow', 'flow') then
        raise invalid_parameter_value using message = format(
            'a schedule starts a workflow or a flow, publishes to a topic or sends to a queue: '
            'its kind is not %s', quote_literal(left(p_new.kind, 200)));
    end if;
    if p_new.message_group is not null then
        raise invalid_parameter_value using message = format(
            'schedule %s starts runs: a group is for messages', p_new.name);
    end if;
    perform holdfast._check_start('00000000-0000-0000-0000-000000000000', p_new.target,
        p_new.input, p_new.version, null, p_new.queue, p_new.priority, null, null, p_new.timeout,
        p_new.retention, p_new.tags, p_new.headers, null);
end $$;

-- Refuse names that no schedule can have (22004, 22023). Called by _check_schedule.
create or replace function holdfast._check_schedule_name(p_name text) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('the name of a schedule', p_name is not null);
    if not holdfast._is_workflow(p_name) then
        raise invalid_parameter_value using message = format(
            '%s cannot be the name of a schedule: it is APP/NAME, each of 1 to 128 of the '
            'characters a-z, A-Z, 0-9, ".", "_" and "-"', quote_literal(left(p_name, 200)));
    end if;
end $$;

-- Refuse a policy of overlap that there is not (22004, 22023). Called by _check_schedule,
-- trigger_schedule and backfill_schedule.
create or replace function holdfast._check_overlap(p_overlap text) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('a policy of overlap', p_overlap is not null);
    if p_overlap not in ('skip', 'buffer_one', 'buffer_all', 'allow', 'cancel_running',
        'terminate_running')
    then
        raise invalid_parameter_value using message = format(
            'a policy of overlap is skip, buffer_one, buffer_all, allow, cancel_running or '
            'terminate_running, not %s', quote_literal(left(p_overlap, 200)));
    end if;
end $$;

-- Return the full name of a schedule. One without an app is that of the only schedule with it.
-- Refuses a name that schedules of several apps have (22023). Called by functions for users.
create or replace function holdfast._schedule_name(p_name text) returns text
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_names text[];
begin
    perform holdfast._check_given('the name of a schedule', p_name is not null);
    if strpos(p_name, '/') > 0 or exists (
        select from holdfast.schedules s where s.name = p_name)
    then
        return p_name;
    end if;
    v_names := array(
        select s.name from holdfast.schedules s
        where split_part(s.name, '/', 2) = p_name order by s.name);
    if cardinality(v_names) > 1 then
        raise invalid_parameter_value using message = format(
            'several apps have a schedule %s: name one of %s', p_name,
            array_to_string(v_names, ', '));
    end if;
    return coalesce(v_names[1], p_name);
end $$;

-- Return the name of the schema. In a text of the other kind the word would not be rewritten.
-- Called by _tell_schedulers and _tell_limited.
create or replace function holdfast._schema() returns text
language sql immutable parallel safe
return trim(both '"' from $name$holdfast$name$);

-- Wake the schedulers with this transaction: they have something to look at. Locks: at the commit,
-- the server's lock for notifications. Called by all that change schedules, which is rare.
create or replace function holdfast._tell_schedulers(p_payload text) returns void
language sql
as $$
    select pg_notify(holdfast._channel(holdfast._schema(), 'schedules'), p_payload)
$$;

-- Write a tick in UTC, with microseconds if it has any: a part of the run's key and of its headers.
-- Called by _start_of_tick, _start_ticks, _starts_of, _tick_headers, _event_of_tick and
-- _publish_alert.
create or replace function holdfast._tick_text(p_at timestamptz) returns text
language sql stable parallel safe
return to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
    || case when date_trunc('second', p_at) = p_at then ''
        else to_char(p_at at time zone 'UTC', '.US') end || 'Z';

-- Return the moment at which the run of a tick may start. The jitter is the same for the same tick
-- whenever it is computed. Called by _starts_of and _send_tick.
create or replace function holdfast._start_of_tick(
    p_name text, p_at timestamptz, p_jitter float8
) returns timestamptz
language sql stable parallel safe
return p_at + p_jitter * interval '1 second' * (('x' || left(encode(sha256(convert_to(
    p_name || '@' || holdfast._tick_text(p_at), 'UTF8')), 'hex'), 12))::bit(48)::bigint
    / 281474976710656.0::float8);

-- Return the headers of what a tick starts or sends: those of the schedule, its name and the tick.
-- Called by _starts_of and _send_tick.
create or replace function holdfast._tick_headers(p_headers json, p_name text, p_at timestamptz)
returns json
language sql stable parallel safe
return case when p_headers is null then json_build_object(
        'holdfast-schedule', p_name, 'holdfast-scheduled-at', holdfast._tick_text(p_at))
    else (p_headers::jsonb || jsonb_build_object('holdfast-schedule', p_name,
        'holdfast-scheduled-at', holdfast._tick_text(p_at)))::json end;
