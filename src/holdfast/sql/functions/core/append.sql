-- Append to logs from outside a run's own commits.

-- Append one event to a log, trying again while others are faster. Returns its idx, or null if the
-- run does not exist or has ended, or if the log has this signal id already.
-- Locks: the event. Called by all that append from outside.
create or replace function holdfast._append(
    p_now timestamptz, p_run_id uuid, p_event_type text,
    p_details json default null, p_key text default null
) returns int
language plpgsql
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

        -- Nothing was written: either nothing can be, or another transaction was faster.
        select holdfast._is_terminal(e.event_type) into v_ended
        from holdfast.events e where e.run_id = p_run_id order by e.idx desc limit 1;
        exit when coalesce(v_ended, true);
        exit when p_event_type = 'SignalReceived' and holdfast._has_signal(p_run_id, p_key);
    end loop;
    return v_idx;
end $$;

-- Append several events to a log as one block. The transaction that inserts the first event has
-- won: no other one can know the indexes after it. Returns the first idx, or null if the run does
-- not exist or has ended. For signals use _append, which looks for their ids.
-- Locks: the events. Called by all that tell a run of several ends at once.
create or replace function holdfast._append_block(
    p_now timestamptz, p_run_id uuid, p_types text[], p_keys text[], p_details json[]
) returns int
language plpgsql
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

-- Append one event to each of many runs; each run is given once. Returns the runs that have the
-- event now, in no order; the others do not exist or have ended.
-- Locks: expects the turn rows locked. So no other transaction appends to runs that no worker
-- holds: these are written in one statement, and then the others run by run. Called by all that end
-- or cancel runs.
create or replace function holdfast._append_each(
    p_now timestamptz, p_run_ids uuid[], p_event_type text, p_details json[]
) returns uuid[]
language plpgsql
as $$
declare
    v_run_ids uuid[];
    v_run record;
begin
    with written as (
        insert into holdfast.events (run_id, idx, event_type, details, at)
        select u.run_id, e.idx + 1, p_event_type, u.details, p_now
        from unnest(p_run_ids, p_details) as u (run_id, details)
        cross join lateral (
            select t.worker from holdfast.tasks t
            where t.run_id = u.run_id and t.key = '' limit 1
        ) as t
        cross join lateral (
            select e.idx, e.event_type from holdfast.events e
            where e.run_id = u.run_id order by e.idx desc limit 1
        ) as e
        where t.worker is null and not holdfast._is_terminal(e.event_type)
        order by u.run_id
        on conflict do nothing
        returning run_id
    )
    select coalesce(array_agg(w.run_id), '{}') into v_run_ids from written w;

    for v_run in
        select u.run_id, u.details
        from unnest(p_run_ids, p_details) as u (run_id, details)
        where u.run_id <> all (v_run_ids) and cardinality(v_run_ids) < cardinality(p_run_ids)
        order by u.run_id
    loop
        if holdfast._append(p_now, v_run.run_id, p_event_type, v_run.details) is not null then
            v_run_ids := v_run_ids || v_run.run_id;
        end if;
    end loop;
    return v_run_ids;
end $$;

-- Return true if a run's log has a signal of this id. Locks nothing. Called by _append,
-- signal_runs, _tell_waiting and _has_arrived.
create or replace function holdfast._has_signal(p_run_id uuid, p_key text) returns boolean
language plpgsql stable
as $$
begin
    return exists (
        select from holdfast.events s
        where s.run_id = p_run_id and s.key = p_key and s.event_type = 'SignalReceived');
end $$;
