-- Refuse values of runs to start. Each value is checked by a function of 01_values.sql.

-- Return true if a run to start has only these values, they are allowed, and its name and input are
-- so short and plain that they cannot be wrong. A null is allowed but for the id and the name.
-- PostgreSQL prepares each part of this in each transaction of a start, so there are few.
-- Called by start_one and start_flows.
create or replace function holdfast._is_plain_start(
    p_run_id uuid, p_name text, p_input json, p_key text, p_queue text, p_priority int,
    p_retention float8, p_waiter text
) returns boolean
language sql stable parallel safe
return (p_run_id is not null and p_name is not null
    and octet_length(p_name) <= 128 and holdfast._is_like_workflow(p_name)
    and holdfast._is_plain(p_input) and holdfast._is_id(p_key) and holdfast._is_name(p_queue)
    and p_priority between 0 and 4 and holdfast._is_seconds(p_retention)
    and holdfast._is_id(p_waiter)) is not false;

-- Return true if runs to start have one name and one queue, and are plain as _is_plain_start says.
-- Arrays are compared whole: to look at each run takes several times as long. Called by start_runs.
create or replace function holdfast._are_plain_starts(
    p_run_ids uuid[], p_names text[], p_inputs json[], p_queues text[], p_priorities int[],
    p_retentions float8[]
) returns boolean
language plpgsql stable parallel safe
as $$
begin  -- in SQL its subquery would be planned again in each call
    return (num_nulls(variadic p_run_ids) = 0 and cardinality(p_names) = cardinality(p_run_ids)
        and greatest(cardinality(p_inputs), cardinality(p_queues), cardinality(p_priorities),
            cardinality(p_retentions), 0) <= cardinality(p_run_ids)
        and holdfast._is_workflow(p_names[1]) and p_names[1] = all (p_names)
        and not exists (  -- unnested in a list of columns, where the rows are not stored
            select from (select unnest(p_inputs) as input) as u
            where not holdfast._is_plain(u.input))
        and (p_queues is null or holdfast._is_name(p_queues[1]) and p_queues[1] = all (p_queues))
        and (p_priorities is null or 0 <= all (p_priorities) and 4 >= all (p_priorities))
        and (p_retentions is null or 0 <= all (p_retentions) and 1e10 >= all (p_retentions))
    ) is true;
end $$;

-- Return true if those values of a run to start that are not names are allowed. Called by _is_start
-- and _starts.
create or replace function holdfast._are_start_values(
    p_run_id uuid, p_input json, p_version int, p_key text, p_priority int, p_start_at bigint,
    p_delay float8, p_timeout float8, p_retention float8, p_tags json, p_headers json,
    p_waiter text
) returns boolean
language sql stable parallel safe
return (p_run_id is not null
    and (p_input is null or holdfast._is_legible(p_input))
    and (p_version is null or p_version > 0) and (p_key is null or holdfast._is_id(p_key))
    and (p_priority is null or p_priority between 0 and 4)
    and (p_start_at is null or holdfast._is_moment(p_start_at))
    and (p_delay is null or holdfast._is_seconds(p_delay))
    and (p_timeout is null or holdfast._is_seconds(p_timeout))
    and (p_retention is null or holdfast._is_seconds(p_retention))
    and (p_tags is null or holdfast._are_labels(p_tags))
    and (p_headers is null or holdfast._is_of_texts('object', p_headers))
    and (p_waiter is null or holdfast._is_id(p_waiter))) is true;

-- Return true if every value of a run to start is allowed. Called by start_one.
create or replace function holdfast._is_start(
    p_run_id uuid, p_name text, p_input json, p_version int, p_key text, p_queue text,
    p_priority int, p_start_at bigint, p_delay float8, p_timeout float8, p_retention float8,
    p_tags json, p_headers json, p_waiter text
) returns boolean
language sql stable parallel safe
return (holdfast._is_workflow(p_name) and (p_queue is null or holdfast._is_name(p_queue))
    and holdfast._are_start_values(p_run_id, p_input, p_version, p_key, p_priority, p_start_at,
        p_delay, p_timeout, p_retention, p_tags, p_headers, p_waiter)) is true;

-- Refuse a run to start that has a value that is not allowed (22004, 22023). Called by start_one,
-- _starts, _check_schedule_target and _check_subscription.
create or replace function holdfast._check_start(
    p_run_id uuid, p_name text, p_input json, p_version int, p_key text, p_queue text,
    p_priority int, p_start_at bigint, p_delay float8, p_timeout float8, p_retention float8,
    p_tags json, p_headers json, p_waiter text
) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('a run id', p_run_id is not null);
    perform holdfast._check_name('a workflow', p_name);
    perform holdfast._check_name('a queue', coalesce(p_queue, 'default'));
    perform holdfast._check_json('the input', coalesce(p_input, 'null'));
    perform holdfast._check_version(p_version);
    perform holdfast._check_id('a key', p_key);
    perform holdfast._check_priority(p_priority);
    perform holdfast._check_moment('a start', p_start_at);
    perform holdfast._check_seconds('a delay', p_delay);
    perform holdfast._check_seconds('a timeout', p_timeout);
    perform holdfast._check_seconds('a retention', p_retention);
    perform holdfast._check_labels(p_tags);
    perform holdfast._check_texts('headers', 'object', p_headers);
    perform holdfast._check_id('a waiter', p_waiter);
end $$;

-- Return a run to start; what is left out is null. It is inlined, so that it costs what the row
-- does. Called by all that start runs.
create or replace function holdfast._new_start(
    run_id uuid, name text, input json, version int default null, key text default null,
    queue text default null, priority int default null, visible_at timestamptz default null,
    timeout float8 default null, retention float8 default null, tags json default null,
    headers json default null, parent_run_id uuid default null, parent_key text default null,
    parent_close text default null, waiter text default null, rules json default null
) returns holdfast._start
language sql immutable parallel safe
return row(run_id, name, input, version, key, queue, priority, visible_at, timeout, retention, tags,
    headers, parent_run_id, parent_key, parent_close, waiter, rules, null, null)::holdfast._start;

-- Return runs to start, in the order of arrays, which are those of start_runs. Refuse values that
-- _is_start does not allow. Most runs of a call have the names of the first one, which are checked
-- once. Called by start_runs and start_flows.
create or replace function holdfast._starts(
    p_now timestamptz, p_run_ids uuid[], p_names text[], p_inputs json[], p_versions int[],
    p_keys text[], p_queues text[], p_priorities int[], p_start_ats bigint[], p_delays float8[],
    p_timeouts float8[], p_retentions float8[], p_tags json[], p_headers json[], p_waiters text[],
    p_rules json[] default null
) returns holdfast._start[]
language plpgsql stable
as $$
declare
    v_starts holdfast._start[];
    v_name text := case when holdfast._is_workflow(p_names[1]) then p_names[1] end;
    v_queue text := case when holdfast._is_name(p_queues[1]) then p_queues[1] end;
begin
    perform holdfast._check_given('the run ids', p_run_ids is not null);
    v_starts := array(
        select case when (u.name = v_name or holdfast._is_workflow(u.name))
                and (u.queue is null or u.queue = v_queue or holdfast._is_name(u.queue))
                and holdfast._are_start_values(u.run_id, u.input, u.version, u.key, u.priority,
                    u.start_at, u.delay, u.timeout, u.retention, u.tags, u.headers, u.waiter)
            then holdfast._new_start(u.run_id, u.name, u.input, u.version, u.key, u.queue,
                u.priority, coalesce(holdfast._moment(u.start_at),
                    p_now + coalesce(u.delay, 0) * interval '1 second'),
                u.timeout, u.retention, u.tags, u.headers, waiter => u.waiter, rules => u.rules)
            end
        from unnest(p_run_ids, p_names, p_inputs, p_versions, p_keys, p_queues, p_priorities,
            p_start_ats, p_delays, p_timeouts, p_retentions, p_tags, p_headers, p_waiters, p_rules)
            with ordinality as u (run_id, name, input, version, key, queue, priority, start_at,
                delay, timeout, retention, tags, headers, waiter, rules, place)
        order by u.place);
    if num_nulls(variadic v_starts) > 0 then
        perform holdfast._check_start(p_run_ids[p], p_names[p], p_inputs[p], p_versions[p],
            p_keys[p], p_queues[p], p_priorities[p], p_start_ats[p], p_delays[p], p_timeouts[p],
            p_retentions[p], p_tags[p], p_headers[p], p_waiters[p])
        from generate_subscripts(v_starts, 1) as p where v_starts[p] is null;
    end if;
    return v_starts;
end $$;
