-- Appends to a run's log by others than its worker.

-- Append one event behind a log's last one, trying again as long as others are faster. Returns
-- its idx, or null where the run does not exist or has ended, and for a signal id that the log
-- has already. Locks: the event. Called by all that append from outside.
create or replace function holdfast._append(
    p_now timestamptz, p_run_id uuid, p_event_type text,
    p_details json default null, p_key text default null
) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_idx int;
    v_ended boolean;
begin
    loop
        insert into holdfast.events (run_id, idx, event_type, key, details, at)
        select p_run_id, e.idx + 1, p_event_type, p_key, p_details, p_now
        from (
            select * from holdfast.events e
            where e.run_id = p_run_id order by e.idx desc limit 1
        ) as e
        where not holdfast._is_terminal(e.event_type)
            and not (p_event_type = 'SignalReceived' and p_key is not null and exists (
                select from holdfast.events s
                where s.run_id = p_run_id and s.key = p_key
                    and s.event_type = 'SignalReceived'))
        on conflict do nothing
        returning idx into v_idx;
        exit when v_idx is not null;

        -- Nothing was written: is that for good, or was somebody faster?
        select holdfast._is_terminal(e.event_type) into v_ended
        from holdfast.events e where e.run_id = p_run_id order by e.idx desc limit 1;
        exit when coalesce(v_ended, true);
        exit when p_event_type = 'SignalReceived' and holdfast._has_signal(p_run_id, p_key);
    end loop;
    return v_idx;
end $$;

-- Append several events behind a log's last one, as one block: the first one owns the append,
-- and nobody else can know the places behind it. Returns the first idx, or null where the run does
-- not exist or has ended. Signals need _append, which looks for their ids.
-- Locks: the events. Called by all that tell a run of several ends at once.
create or replace function holdfast._append_block(
    p_now timestamptz, p_run_id uuid, p_types text[], p_keys text[], p_details json[]
) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_idx int := holdfast._append(p_now, p_run_id, p_types[1], p_details[1], p_keys[1]);
begin
    if v_idx is not null and cardinality(p_types) > 1 then
        insert into holdfast.events (run_id, idx, event_type, key, details, at)
        select p_run_id, v_idx + e.place, e.event_type, e.key, e.details, p_now
        from unnest(p_types[2:], p_keys[2:], p_details[2:]) with ordinality
            as e (event_type, key, details, place);
    end if;
    return v_idx;
end $$;

-- Wake a run that awaits the end of an activity or a child, or a decision, or tell its holder that
-- there is one. Returns a (topic, payload) notice, or null.
-- Locks: expects the turn row locked. Called by all that append such ends.
create or replace function holdfast._wake_ends(p_now timestamptz, p_run_id uuid) returns text[]
language plpgsql
as $$
begin
    return holdfast._wake(p_now, p_run_id, ':end');
end $$;

-- Say whether a run's log has a signal of this id. Locks nothing. Called by _append and
-- signal_runs.
create or replace function holdfast._has_signal(p_run_id uuid, p_key text) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    return exists (
        select from holdfast.events s
        where s.run_id = p_run_id and s.key = p_key and s.event_type = 'SignalReceived');
end $$;

-- Fence the holders of leases that ran out: WorkerLost with the lease's number. Attempts start
-- anew where the run made progress under that lease (signals are none); over the limit its run
-- fails, and its tasks are gone. An activity's attempts go on counting, and fail nothing. Returns
-- (topic, payload) notices.
-- Locks: expects the task rows locked; events, run by run. Called by claim_tasks.
create or replace function holdfast._lose_workers(
    p_now timestamptz, p_run_ids uuid[], p_keys text[], p_max_attempts int
) returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_task record;
    v_poisoned uuid[] := '{}';
    v_errors json[] := '{}';
begin
    for v_task in
        select t.* from unnest(p_run_ids, p_keys) as u (run_id, key)
        cross join lateral (
            select * from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key limit 1
        ) as t
        where t.worker is not null
        order by t.run_id, t.key
    loop
        perform holdfast._append(p_now, v_task.run_id, 'WorkerLost', json_build_object(
            'task_key', v_task.key, 'lease_no', v_task.lease_no, 'worker', v_task.worker));
        -- The attempts of an activity are its policy's: whoever has it next decides.
        continue when v_task.key <> '';
        -- Asked behind WorkerLost: a late checkpoint may have come before it.
        if exists (
            select from holdfast.events e
            where e.run_id = v_task.run_id and e.idx >= v_task.claimed_idx
                and e.commit_token is not null
        ) then
            update holdfast.tasks t set attempts = 0
            where t.run_id = v_task.run_id and t.key = v_task.key;
        elsif v_task.attempts >= p_max_attempts then
            perform holdfast._append(p_now, v_task.run_id, 'WorkflowFailed');
            v_poisoned := v_poisoned || v_task.run_id;
            v_errors := v_errors || json_build_object('kind', 'holdfast.PoisonedRun', 'message',
                format('the run lost %s workers without making progress', v_task.attempts));
        end if;
    end loop;
    return holdfast._end_runs(p_now, v_poisoned,
        array_fill('failed'::text, array[cardinality(v_poisoned)]), null, v_errors);
end $$;
