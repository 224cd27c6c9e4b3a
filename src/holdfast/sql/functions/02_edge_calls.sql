-- What is refused of a whole call: of runs to start, signals, changes of runs, decisions, ends of
-- activities and forks. Each value of it is judged by what stands in 01_edge.sql.

-- Return true if every value of a run to start is allowed. Called by start_runs and _check_starts.
create or replace function holdfast._is_start(
    p_run_id uuid, p_name text, p_input json, p_version int, p_key text, p_queue text,
    p_priority int, p_start_at bigint, p_delay float8, p_timeout float8, p_retention float8,
    p_tags json, p_headers json, p_waiter text
) returns boolean
language sql stable parallel safe
return (p_run_id is not null and holdfast._is_workflow(p_name)
    and (p_input is null or holdfast._is_legible(p_input))
    and (p_version is null or p_version > 0) and (p_key is null or holdfast._is_id(p_key))
    and (p_queue is null or holdfast._is_name(p_queue))
    and (p_priority is null or p_priority between 0 and 4)
    and (p_start_at is null or holdfast._is_moment(p_start_at))
    and (p_delay is null or holdfast._is_seconds(p_delay))
    and (p_timeout is null or holdfast._is_seconds(p_timeout))
    and (p_retention is null or holdfast._is_seconds(p_retention))
    and (p_tags is null or holdfast._is_of_texts('array', p_tags))
    and (p_headers is null or holdfast._is_of_texts('object', p_headers))
    and (p_waiter is null or holdfast._is_id(p_waiter))) is true;

-- Refuse runs to start that have a value that _is_start does not allow; the parameters are those of
-- start_runs. Called by start_runs.
create or replace function holdfast._check_starts(
    p_run_ids uuid[], p_names text[], p_inputs json[], p_versions int[], p_keys text[],
    p_queues text[], p_priorities int[], p_start_ats bigint[], p_delays float8[],
    p_timeouts float8[], p_retentions float8[], p_tags json[], p_headers json[], p_waiters text[]
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_run record;
begin
    perform holdfast._check_given('the run ids', p_run_ids is not null);
    select u.* into v_run from unnest(p_run_ids, p_names, p_inputs, p_versions, p_keys, p_queues,
        p_priorities, p_start_ats, p_delays, p_timeouts, p_retentions, p_tags, p_headers,
        p_waiters)
        as u (run_id, name, input, version, key, queue, priority, start_at, delay, timeout,
            retention, tags, headers, waiter)
    where not holdfast._is_start(u.run_id, u.name, u.input, u.version, u.key, u.queue,
        u.priority, u.start_at, u.delay, u.timeout, u.retention, u.tags, u.headers, u.waiter)
    limit 1;
    if found then
        perform holdfast._check_given('a run id', v_run.run_id is not null);
        perform holdfast._check_name('a workflow', v_run.name);
        perform holdfast._check_name('a queue', coalesce(v_run.queue, 'default'));
        perform holdfast._check_json('the input', coalesce(v_run.input, 'null'));
        perform holdfast._check_version(v_run.version);
        perform holdfast._check_id('a key', v_run.key);
        perform holdfast._check_priority(v_run.priority);
        perform holdfast._check_moment('a start', v_run.start_at);
        perform holdfast._check_seconds('a delay', v_run.delay);
        perform holdfast._check_seconds('a timeout', v_run.timeout);
        perform holdfast._check_seconds('a retention', v_run.retention);
        perform holdfast._check_texts('tags', 'array', v_run.tags);
        perform holdfast._check_texts('headers', 'object', v_run.headers);
        perform holdfast._check_id('a waiter', v_run.waiter);
    end if;
end $$;

-- Return true if every value of a signal is allowed. Called by signal_runs and _check_signals.
create or replace function holdfast._is_signal(
    p_run_id uuid, p_name text, p_payload json, p_signal_id text, p_reply_to text
) returns boolean
language sql stable parallel safe
return (p_run_id is not null and holdfast._is_name(p_name) and holdfast._is_legible(p_payload)
    and (p_signal_id is null or holdfast._is_id(p_signal_id))
    and (p_reply_to is null or holdfast._is_id(p_reply_to))) is true;

-- Refuse signals that have a value that _is_signal does not allow; the parameters are those of
-- signal_runs. Called by signal_runs.
create or replace function holdfast._check_signals(
    p_run_ids uuid[], p_names text[], p_payloads json[], p_signal_ids text[], p_reply_tos text[]
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signal record;
begin
    perform holdfast._check_given('the run ids', p_run_ids is not null);
    select u.* into v_signal
    from unnest(p_run_ids, p_names, p_payloads, p_signal_ids, p_reply_tos)
        as u (run_id, name, payload, signal_id, reply_to)
    where not holdfast._is_signal(u.run_id, u.name, u.payload, u.signal_id, u.reply_to)
    limit 1;
    if found then
        perform holdfast._check_given('a run id', v_signal.run_id is not null);
        perform holdfast._check_name('a signal', v_signal.name);
        perform holdfast._check_json('the payload', v_signal.payload);
        perform holdfast._check_id('a signal id', v_signal.signal_id);
        perform holdfast._check_id('a topic', v_signal.reply_to);
    end if;
end $$;

-- Refuse a null among the ids of runs to change, and a reason that is too long. Called by
-- cancel_runs, terminate_runs, pause_runs and resume_runs.
create or replace function holdfast._check_change(p_run_ids uuid[], p_reason text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform holdfast._check_given('the run ids', p_run_ids is not null);
    perform holdfast._check_given('a run id', array_position(p_run_ids, null) is null);
    perform holdfast._check_text('a reason', p_reason);
end $$;

-- Refuse decisions that have a value that is not allowed; the parameters are those of
-- decide_approval. Called by decide_approval.
create or replace function holdfast._check_decision(
    p_run_id uuid, p_key text, p_decision_id text, p_approved boolean, p_by text,
    p_feedback text, p_values json
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform holdfast._check_given('the run id', p_run_id is not null);
    perform holdfast._check_given('the key', p_key is not null);
    perform holdfast._check_given('the decision id', p_decision_id is not null);
    perform holdfast._check_given('approved', p_approved is not null);
    perform holdfast._check_id('a decision id', p_decision_id);
    perform holdfast._check_text('a name', p_by);
    perform holdfast._check_text('a feedback', p_feedback);
    perform holdfast._check_json('the values', coalesce(p_values, 'null'));
    if json_typeof(p_values) not in ('object', 'null') then
        raise invalid_parameter_value using message = 'the values are a JSON object';
    end if;
end $$;

-- Refuse results and errors of activities that no run could read. A null is allowed. Called by
-- end_activities.
create or replace function holdfast._check_ends(
    p_results json[], p_errors json[], p_details json[]
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_value json;
begin
    select u.value into v_value from unnest(p_results || p_errors || p_details) as u (value)
    where u.value is not null and not holdfast._is_legible(u.value)
    limit 1;
    if found then
        perform holdfast._check_json('what an activity has said', v_value);
    end if;
end $$;

-- Refuse forks that have a value that is not allowed; the parameters are those of fork_run. Called
-- by fork_run.
create or replace function holdfast._check_fork(
    p_run_id uuid, p_new_run_id uuid, p_retry boolean, p_input json, p_results json,
    p_version int
) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform holdfast._check_given('the run id', p_run_id is not null);
    perform holdfast._check_given('the new run''s id', p_new_run_id is not null);
    perform holdfast._check_given('retry', p_retry is not null);
    perform holdfast._check_json('the input', coalesce(p_input, 'null'));
    perform holdfast._check_json('the results', coalesce(p_results, '{}'));
    if json_typeof(p_results) <> 'object' then
        raise invalid_parameter_value using message = 'the results are a JSON object, by key';
    end if;
    perform holdfast._check_version(p_version);
end $$;
