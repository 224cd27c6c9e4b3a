-- The functions that all others use: time, ids of runs, roles of events, states.
--
-- The search_path of a session may have operators and functions in front of PostgreSQL's own. They
-- have no effect here: a function either has its own path, or is one expression after `return`,
-- which is parsed when the function is created. The latter are inlined.

-- Return the engine's time. Sessions may fake it: `set holdfast.fake_now = '…'`. STABLE, so that it
-- can be compared through an index.
create or replace function holdfast.now() returns timestamptz
language sql stable parallel safe
return coalesce(
    nullif(current_setting('holdfast.fake_now', true), '')::timestamptz, statement_timestamp());

-- Return microseconds since 1970 as a timestamp; exact until the year 2242.
create or replace function holdfast._moment(p_micros bigint) returns timestamptz
language sql immutable parallel safe
return to_timestamp(p_micros / 1000000.0::float8);

-- Return a timestamp as microseconds since 1970; null for 'infinity'.
create or replace function holdfast._micros(p_at timestamptz) returns bigint
language sql stable parallel safe
return round(
    date_part('epoch', nullif(p_at, 'infinity'::timestamptz)) * 1000000.0::float8)::bigint;

-- Return the role of an event type. The roles are those of holdfast/events.py: a test compares them
-- with this function, and with every other list of event types in these files. Functions that are
-- called often have the types as literals, as _is_terminal does: PostgreSQL can inline that.
create or replace function holdfast._event_role(p_event_type text) returns text
language sql immutable parallel safe
return case
    when p_event_type = 'WorkflowStarted' then 'start'
    when p_event_type in (
        'ActivityScheduled', 'ChildStarted', 'ApprovalRequested', 'WebhookOpened', 'SignalSent',
        'EventSubscribed', 'StreamWritten') then 'command'
    when p_event_type in (
        'ActivityCancelRequested', 'ChildCancelRequested', 'ApprovalWithdrawn',
        'WebhookClosed') then 'withdrawal'
    when p_event_type in (
        'ActivityCompleted', 'ActivityFailed', 'ChildCompleted', 'ChildFailed',
        'ApprovalResolved', 'WebhookReceived') then 'command_end'
    when p_event_type in (
        'ActivityRetryScheduled', 'SignalReceived', 'WorkflowCancelRequested', 'WorkflowPaused',
        'WorkflowResumed', 'WorkflowRescheduled', 'WorkflowForked',
        'WorkerLost') then 'external'
    when p_event_type in ('StepCompleted', 'StepFailed', 'TimerFired') then 'delivered'
    when p_event_type = 'WorkflowTaskYielded' then 'suspension'
    when p_event_type in (
        'WorkflowCompleted', 'WorkflowFailed', 'WorkflowCanceled', 'WorkflowTimedOut',
        'WorkflowTerminated', 'WorkflowContinuedAsNew') then 'end'
    else 'fact' end;

-- Return true if nothing may follow an event of this type.
create or replace function holdfast._is_terminal(p_event_type text) returns boolean
language sql immutable parallel safe
return p_event_type in (
    'WorkflowCompleted', 'WorkflowFailed', 'WorkflowCanceled',
    'WorkflowTimedOut', 'WorkflowTerminated', 'WorkflowContinuedAsNew');

-- Return the id of a run that is started with a key: UUIDv8 of sha256(name, 0x00, key), with the
-- first byte 0xff so that keyed runs lie together. The name is `app/name`: two apps with the same
-- workflow and key have two runs.
create or replace function holdfast.keyed_run_id(p_name text, p_key text) returns uuid
language sql immutable strict parallel safe
return (
    select encode(
        set_byte(set_byte(set_byte(d.b, 0, 255),
            6, get_byte(d.b, 6) & 15 | 128), 8, get_byte(d.b, 8) & 63 | 128),
        'hex')::uuid
    from (select substr(sha256(
        convert_to(p_name, 'UTF8') || E'\\x00'::bytea || convert_to(p_key, 'UTF8')), 1, 16)
        as b) as d
);

-- Draw a run id that sorts by time: UUIDv7, with 48 bits of milliseconds before random bits.
create or replace function holdfast.new_run_id() returns uuid
language sql volatile parallel safe
return (
    select encode(
        set_byte(d.b, 6, get_byte(d.b, 6) & 15 | 112), 'hex')::uuid
    from (select overlay(
        uuid_send(gen_random_uuid())
        placing substr(int8send(floor(date_part('epoch', clock_timestamp()) * 1000)::bigint), 3)
        from 1 for 6) as b) as d
);

-- Return the engine's time as it is by now. holdfast.now() stands still while a statement runs,
-- also while one waits, and a worker in SQL may loop in one. Called by read_tasks, _lease_messages,
-- _fail_illegible, complete_task, fail_task and requeue_stalled_tasks.
create or replace function holdfast._clock() returns timestamptz
language sql volatile
return holdfast.now() + (clock_timestamp() - statement_timestamp());

-- Return the engine's time in microseconds since 1970.
create or replace function holdfast.now_micros() returns bigint
language sql stable parallel safe
return holdfast._micros(holdfast.now());

-- Return the state of a run as people see it, from its status and the row of its next turn.
create or replace function holdfast._state(
    p_status text, p_worker text, p_paused boolean, p_stuck text, p_visible_at timestamptz
) returns text
language sql stable
return case
    when p_status <> 'running' then p_status
    when p_worker is not null then 'running'
    when p_paused then 'paused'
    when p_stuck is not null then 'stuck'
    when p_visible_at <= holdfast.now() then 'queued'
    else 'waiting' end;

-- Return true if the details of an event are the run's input, output or error, which are stored
-- once: in the run's row.
create or replace function holdfast._is_told_by_run(p_event_type text) returns boolean
language sql immutable parallel safe
return p_event_type in ('WorkflowStarted', 'WorkflowCompleted', 'WorkflowFailed');

-- Return a run's input, output or error as the details of an event of this type. Called by
-- _details.
create or replace function holdfast._told_by_run(p_run_id uuid, p_event_type text) returns json
language plpgsql stable
as $$
begin
    return case p_event_type
            when 'WorkflowStarted' then r.input
            when 'WorkflowCompleted' then r.output
            else r.error end
    from holdfast.runs r
    where r.run_id = p_run_id;
end $$;

-- Return what completed a step of a flow, as the details of its event: {"output": …}. Of a map
-- these are its {"tasks": number of elements}: a page of a log must not bring 100,000 results with
-- it. Called by _details.
create or replace function holdfast._told_by_step(p_run_id uuid, p_step text) returns json
language plpgsql stable
as $$
begin
    return case when s.output is null or s.initial_tasks = 0
            then ('{"tasks":' || s.initial_tasks || '}')::json
            else ('{"output":' || s.output || '}')::json end
    from holdfast.step_states s
    where s.run_id = p_run_id and s.step_slug = p_step and s.status = 'completed';
end $$;

-- Return an error as one line: its class and its message, or one of both. Called by
-- _fail_attempts and _tell_flow.
create or replace function holdfast._error_line(p_error json) returns text
language sql stable
return concat_ws(': ', nullif(regexp_replace(p_error ->> 'kind', '^builtins[.]', ''), ''),
    nullif(p_error ->> 'message', ''));

-- Return the details of an event, filled in if what they tell is stored elsewhere. Called by
-- read_events, read_log, read_tails and recent_events.
create or replace function holdfast._details(
    p_run_id uuid, p_event_type text, p_key text, p_details json
) returns json
language sql stable
return case
    when holdfast._is_told_by_run(p_event_type) then holdfast._told_by_run(p_run_id, p_event_type)
    when p_event_type = 'FlowStepCompleted' then holdfast._told_by_step(p_run_id, p_key)
    else p_details end;

-- Return the id of a message that is sent, or of a token of a group: the next number of the one
-- sequence that both have.
create or replace function holdfast._next_message_id() returns bigint
language sql volatile
return nextval($n$holdfast.message_ids$n$);
