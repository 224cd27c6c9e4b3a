-- How attempts of activities end: reported by workers, or from outside with a token.

-- Record how attempts of activities ended; the arrays are parallel. A result or an error ends the
-- attempt. With neither, another program ends it later: the lease is given back, and the task is
-- due again when the attempt's time is over. After an error, the policy in the payload decides if
-- there is another attempt; there is none if p_retryable is false, or if the run no longer waits
-- for the activity. p_delay_seconds are the pauses that errors asked for, p_units how many units of
-- rates attempts have used, if it is not what was counted.
--
-- An attempt is identified by its worker and the number of its lease. From outside p_worker is
-- null: then the number alone identifies it, while the attempt is open, and keys are as tokens have
-- them. Outcomes are in the order given: 'recorded', 'retried', 'deferred', or 'lost' if the
-- attempt is no longer open. Notices are (topic, payload); with p_tell, the schema's name, the call
-- sends them itself if it can.
-- Refuses JSON that no run could read (22023).
-- Locks: turn rows by run_id, then task rows by (run_id, key), then events, run by run. Called by
-- workers and clients.
create or replace function holdfast.end_activities(
    p_worker text, p_run_ids uuid[], p_keys text[], p_leases int[],
    p_results json[], p_errors json[], p_retryable boolean[], p_timed_out boolean[],
    p_started_ats bigint[], p_details json[], p_delay_seconds float8[] default null,
    p_tell text default null, p_units int[] default null,
    out now bigint, out outcomes text[], out notices text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_places int[] := '{}';
    v_outcomes text[] := '{}';
    v_run record;
begin
    perform holdfast._check_ends(p_results, p_errors, p_details);
    now := holdfast._micros(v_now);
    perform holdfast._lock_turns(array(select distinct unnest(p_run_ids)));
    if p_worker is null then
        p_keys := holdfast._keys_of_tokens(p_run_ids, p_keys);
    end if;
    if p_units is not null then
        perform holdfast._correct_units(
            v_now, p_worker, p_run_ids, p_keys, p_leases, p_units);
    end if;
    for v_run in
        select * from holdfast._end_attempts(v_now, p_worker, p_run_ids, p_keys, p_leases,
            p_results, p_errors, p_retryable, p_timed_out, p_started_ats, p_details,
            p_delay_seconds)
    loop
        v_places := v_places || v_run.places;
        v_outcomes := v_outcomes || v_run.outcomes;
        notices := notices || v_run.notices
            || holdfast._tell_ends(v_now, v_run.run_id, v_run.types, v_run.keys, v_run.details,
                v_run.is_awaited);
    end loop;
    select array_agg(coalesce(o.outcome, 'lost') order by g.place) into outcomes
    from generate_series(1, cardinality(p_run_ids)) as g (place)
    left join unnest(v_places, v_outcomes) as o (place, outcome) using (place);
    notices := holdfast._tell(p_tell, notices);
end $$;

-- Return the keys of activities that tokens name, by @BEGAN/KEY, or by the key alone as in earlier
-- releases. One that began at another moment was called by a deleted run that had the same id: its
-- key is returned as it is given, and no activity has that. Locks nothing. Called by
-- end_activities.
create or replace function holdfast._keys_of_tokens(p_run_ids uuid[], p_keys text[]) returns text[]
language plpgsql stable
as $$
begin
    return array(
        select coalesce((
            select t.key from holdfast.tasks t
            where t.run_id = u.run_id and t.key = n.parts[2]
                and holdfast._micros(t.started_at)::text = n.parts[1]), u.key)
        from unnest(p_run_ids, p_keys) with ordinality as u (run_id, key, place)
        cross join lateral (select regexp_match(u.key, E'^@(\\d+)/(.+)$') as parts) as n
        order by u.place);
end $$;

-- Refuse results and errors of activities that no run could read. A null is allowed. Called by
-- end_activities and end_step_tasks.
create or replace function holdfast._check_ends(
    p_results json[], p_errors json[], p_details json[]
) returns void
language plpgsql immutable
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

-- Append the ends of a run's activities to its log as one block, and wake the run if it waits for
-- one of them. Returns (topic, payload) notices, or null.
-- Locks: expects the turn row locked; events. Called by end_activities, time_out_activities
-- and _tell_stopped.
create or replace function holdfast._tell_ends(
    p_now timestamptz, p_run_id uuid, p_types text[], p_keys text[], p_details json[],
    p_is_awaited boolean
) returns text[]
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    if p_types is null
        or holdfast._append_block(p_now, p_run_id, p_types, p_keys, p_details) is null
        or not p_is_awaited
    then
        return null;
    end if;
    return holdfast._wake(p_now, p_run_id, ':end');
end $$;

-- Change the tasks of attempts that ended. Returns for each run, by run_id, the outcomes with their
-- places in the arrays (from 1), and the events to append to its log. Attempts that are no longer
-- open are left out, and so is the second of two ends of one attempt in a call.
-- Locks: expects the turn rows locked; task rows by (run_id, key). Called by end_activities.
create or replace function holdfast._end_attempts(
    p_now timestamptz, p_worker text, p_run_ids uuid[], p_keys text[], p_leases int[],
    p_results json[], p_errors json[], p_retryable boolean[], p_timed_out boolean[],
    p_started_ats bigint[], p_details json[], p_delay_seconds float8[]
) returns table (
    run_id uuid, places int[], outcomes text[],
    types text[], keys text[], details json[], is_awaited boolean, notices text[]
)
language plpgsql
as $$
begin
    perform holdfast._lock_tasks(p_run_ids, p_keys);
    return query
    with held as materialized (
        select u.*, t.*, row_number() over (partition by u.run_id, u.key order by u.place) as try
        from unnest(p_run_ids, p_keys, p_leases, p_results, p_errors, p_retryable,
                p_timed_out, p_started_ats, p_details, p_delay_seconds) with ordinality
            as u (run_id, key, lease_no, result, error, retryable, timed_out, started_at,
                said, delay_seconds, place)
        cross join lateral (
            select t.ctid as tid, t.queue, t.handler, t.cancelled, t.deadline_at, t.payload,
                greatest(t.attempts, 1) as attempt, t.worker, t.lease_no as held_no,
                t.claimed_idx, t.cancelled and holdfast._is_waited_out(t.payload) as must_end
            from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key and t.kind = 'activity' limit 1
        ) as t
        where t.held_no = u.lease_no
            and case when p_worker is null then t.claimed_idx > 0 else t.worker = p_worker end
    ), judged as materialized (
        select h.*, case
            when h.result is not null then 'recorded'
            when h.error is null and not h.must_end then 'deferred'
            when r.retry_at < coalesce(h.deadline_at, 'infinity') then 'retried'
            else 'recorded' end as outcome,
            coalesce(r.retry_at, holdfast._after(
                coalesce(holdfast._moment(h.started_at), p_now),
                (h.payload ->> 'start_to_close')::float8), 'infinity') as due_at
        from held h
        cross join lateral (
            select case when h.result is null and h.error is not null and h.retryable
                    and not h.cancelled
                then holdfast._after(p_now, holdfast._retry_pause(
                    h.payload -> 'retry', h.attempt, h.delay_seconds))
                end as retry_at
        ) as r
        where h.try = 1
    ), ended as (
        delete from holdfast.tasks t using judged j
        where t.ctid = j.tid and (j.outcome = 'recorded' or j.cancelled)
    ), freed as (
        update holdfast.tasks t
        set worker = null, sticky_worker = null, innocent = false, visible_at = j.due_at,
            stuck = null,
            heartbeat = coalesce(j.said, t.heartbeat),
            claimed_idx = case j.outcome when 'retried' then 0 else t.claimed_idx end
        from judged j
        where t.ctid = j.tid and j.outcome <> 'recorded' and not j.cancelled
    )
    select j.run_id, array_agg(j.place::int order by j.place),
        array_agg(j.outcome order by j.place),
        array_agg(e.type order by j.place) filter (where e.type is not null),
        array_agg(j.key order by j.place) filter (where e.type is not null),
        array_agg(e.details order by j.place) filter (where e.type is not null),
        bool_or(j.outcome = 'recorded' and (j.must_end or not j.cancelled)),
        array_agg(distinct array[case when j.due_at <= p_now then 'activities' else 'work' end,
            j.queue]) filter (where j.outcome = 'retried')
    from judged j
    cross join lateral holdfast._attempt_event(j.outcome, j.handler, j.attempt, j.held_no,
        j.worker, j.started_at, j.result, coalesce(j.error, holdfast._stopped_error()),
        coalesce(j.timed_out, false), j.due_at) as e
    group by j.run_id
    order by j.run_id;
end $$;

-- Return the event that records the end of an attempt; its type is null if the end comes later. The
-- number of its lease is said if it is not that of the attempt.
-- Called by _end_attempts, time_out_activities and _tell_stopped.
create or replace function holdfast._attempt_event(
    p_outcome text, p_handler text, p_attempt int, p_lease_no int, p_worker text,
    p_started_at bigint,
    p_result json, p_error json, p_timed_out boolean, p_retry_at timestamptz
) returns table (type text, details json)
language sql stable
begin atomic
    select e.type, case e.type
        when 'ActivityCompleted' then e.name || ',"result":' || p_result
            || ',"attempt":' || p_attempt || e.lease || e.course
        when 'ActivityFailed' then e.name || ',"error":' || p_error
            || ',"attempt":' || p_attempt || e.lease || ',"timed_out":' || p_timed_out || e.course
        when 'ActivityRetryScheduled' then e.name
            || ',"attempt":' || p_attempt || ',"error":' || p_error
            || ',"retry_at":' || holdfast._micros(p_retry_at)
            || ',"timed_out":' || p_timed_out || e.course end::json
    from (select case
            when p_outcome = 'retried' then 'ActivityRetryScheduled'
            when p_outcome = 'recorded' and p_result is not null then 'ActivityCompleted'
            when p_outcome = 'recorded' then 'ActivityFailed' end as type,
        '{"activity_name":' || to_json(left(p_handler, -2)) as name,
        case when p_lease_no = p_attempt then '' else ',"lease_no":' || p_lease_no end as lease,
        ',"started_at":' || coalesce(p_started_at::text, 'null')
            || ',"worker":' || coalesce(to_json(p_worker)::text, 'null') || '}' as course) as e;
end;

-- Draw the pause after so many failed attempts, in seconds; null if there is no other attempt. The
-- policy is that of ActivityScheduled; an error may have asked for another pause. Called by
-- _end_attempts.
create or replace function holdfast._retry_pause(
    p_retry json, p_attempt int, p_asked_seconds float8
) returns float8
language plpgsql volatile
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_backoff text := p_retry ->> 'backoff';
    v_factor float8 := p_retry ->> 'factor';
    v_growth float8;
begin
    if (p_retry ->> 'attempts')::int <= p_attempt then
        return null;
    end if;
    if p_asked_seconds is not null then
        return p_asked_seconds;
    end if;
    v_growth := case
        when v_backoff = 'fixed' then 1
        when v_backoff = 'linear' then p_attempt
        when (p_attempt - 1) * ln(v_factor) > 600 then 1e290  -- no base makes it overflow
        else power(v_factor, p_attempt - 1) end;
    return least(v_growth * (p_retry ->> 'base')::float8, (p_retry ->> 'max')::float8)
        * (1 + (p_retry ->> 'jitter')::float8 * (2 * random() - 1));
end $$;
