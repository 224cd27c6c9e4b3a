-- Read logs.

-- Return logs, each from an index on, in order. What other rows hold is filled in: the input as the
-- details of WorkflowStarted, output and error as those of the ends, and outputs of steps of flows.
-- Locks nothing. Called by workers and clients, and by _tail.
create or replace function holdfast.read_events(p_run_ids uuid[], p_since int[])
returns table (run_id uuid, idx int, event_type text, key text, details json, at bigint)
language plpgsql stable
as $$
begin
    return query
    select e.run_id, e.idx, e.event_type, e.key,
        holdfast._details(e.run_id, e.event_type, e.key, e.details), holdfast._micros(e.at)
    from unnest(p_run_ids, p_since) as u (run_id, since)
    cross join lateral (
        select * from holdfast.events e
        where e.run_id = u.run_id and e.idx >= u.since
        order by e.idx
    ) as e;
end $$;

-- Return a page of a log, for readers: events from an index on, at most p_limit, in order. Details
-- are the first p_clip characters of their text, and `size` is how many bytes all of it has.
-- Refuses a limit below 0 (22023). Locks nothing. Called by clients.
create or replace function holdfast.read_log(
    p_run_id uuid, p_since int, p_limit int, p_clip int
)
returns table (idx int, event_type text, key text, details text, size int, at bigint)
language plpgsql stable
as $$
begin
    return query
    select e.idx, e.event_type, e.key, left(d.details, greatest(p_clip, 0)),
        octet_length(d.details), holdfast._micros(e.at)
    from (
        select * from holdfast.events e
        where e.run_id = p_run_id and e.idx >= p_since
        order by e.idx
        limit holdfast._limit(p_limit)
    ) as e
    cross join lateral (
        select holdfast._details(e.run_id, e.event_type, e.key, e.details)::text as details offset 0
    ) as d
    order by e.idx;
end $$;

-- Return the next events of logs, for those who follow them: for each place of the arrays, from 1,
-- the events of a run from an index on, by index. A run may be given several times. Details are cut
-- as by read_log. There are p_limit events in all, and no more after details of p_bytes together,
-- or of 8 * p_bytes before they are cut: the next events of all places come first, then those
-- after them, so a long log holds up no other. It is a loop, because it must stop before it reads
-- the next details: PostgreSQL fetches and decompresses them whole to cut them.
-- Refuses a limit below 0 (22023). Locks nothing. Called by clients.
create or replace function holdfast.read_tails(
    p_run_ids uuid[], p_since int[], p_limit int, p_clip int, p_bytes bigint
)
returns table (
    place int, idx int, event_type text, key text, details text, size int, at bigint
)
language plpgsql stable
as $$
declare
    v_event record;
    v_shown bigint := 0;
    v_whole bigint := 0;
begin
    for v_event in
        select u.place::int as place, t.idx - greatest(u.since, 0) as turn, t.*
        from unnest(p_run_ids, p_since) with ordinality as u (run_id, since, place)
        cross join lateral (
            select * from holdfast.events t
            where t.run_id = u.run_id and t.idx >= u.since
            order by t.idx
            limit holdfast._limit(p_limit)
        ) as t
        order by turn, u.place
        limit holdfast._limit(p_limit)
    loop
        exit when v_shown >= p_bytes or v_whole / 8 >= p_bytes;
        details := holdfast._details(
            v_event.run_id, v_event.event_type, v_event.key, v_event.details)::text;
        place := v_event.place;
        idx := v_event.idx;
        event_type := v_event.event_type;
        key := v_event.key;
        size := octet_length(details);
        at := holdfast._micros(v_event.at);
        v_shown := v_shown + least(coalesce(size, 0), p_clip);
        v_whole := v_whole + coalesce(size, 0);
        details := left(details, greatest(p_clip, 0));
        return next;
    end loop;
end $$;

-- Return a log from an index on, and up to another, as a JSON array of [event_type, key, details,
-- at]. With p_texts the details are text in it, so that a flaw in the details of one event is not
-- one in the answer of the call. Workers of releases before that take them as JSON. Called by
-- claim_tasks, _move_after_others and _refusals.
create or replace function holdfast._tail(
    p_run_id uuid, p_since int, p_texts boolean, p_until int default null
) returns json
language plpgsql stable
as $$
begin
    return coalesce(json_agg(
        case when p_texts then json_build_array(e.event_type, e.key, e.details::text, e.at)
        else json_build_array(e.event_type, e.key, e.details, e.at) end order by e.idx), '[]')
    from holdfast.read_events(array[p_run_id], array[p_since]) as e
    where p_until is null or e.idx < p_until;
end $$;

-- Return when the run began whose code wrote the entry of a log at p_idx, in microseconds, as
-- `RunInfo.began` says; null before its first claim. That is the entry which ends the last copy of
-- another log before it, or the first claim. By default that of the run itself. Locks nothing.
-- Called by _results_mark and _refused_calls.
create or replace function holdfast._began(p_run_id uuid, p_idx int default null) returns bigint
language sql stable
as $$
    select holdfast._micros(coalesce(
        (select e.at from holdfast.events e
        where e.run_id = p_run_id and e.event_type = 'WorkflowForked' and e.idx < p_idx is not false
        order by e.idx desc limit 1),
        (select coalesce(r.clock_at, r.started_at) from holdfast.runs r where r.run_id = p_run_id),
        (select t.started_at from holdfast.tasks t where t.run_id = p_run_id and t.key = '')))
$$;
