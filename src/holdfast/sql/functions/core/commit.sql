-- Commit turns of many runs at once; all or nothing for each.
--
-- The first six arrays describe each run's first event, at the index at which its worker expects
-- the log's end; the insert of it owns the append. p_rest_… are the events that follow, then come
-- the runs that suspend and the runs that end. p_commanding are the runs that have commands among
-- their events, p_touched all other runs that these commands and ends may write to, p_parents those
-- of the runs that end which have had children. p_after_others are the runs whose events may be
-- moved after what others have appended meanwhile, if all of that can wait. p_token is drawn once
-- for a call and its repetitions: a part that carries it already was written by an earlier try, and
-- is done.
--
-- `refused` is null, or a JSON array of [run_id, reason, [[event_type, key, details, at], …]] with
-- the events from the expected index on: the reason is 'lost' if another worker has the lease or
-- the run has ended, 'conflict' if only the index is taken. `notices` are (topic, payload). `ahead`
-- is null, or a JSON array of [run_id, […]] with the events that stand before a part of
-- p_after_others. Details are text in both; workers of releases before p_texts take them as JSON.
-- `undelivered` is null, or, with p_undelivered, a JSON array of [run_id, target, name, outcome]:
-- the signals that runs sent to a run that does not exist ('missing') or has ended ('ended').
-- With p_tell, the schema's name, the call sends its notices itself if it can. p_last_ats are the
-- moments of the entries before the expected indexes, as the worker knows them, or 0: if the log
-- has another entry there, it was replaced by an older one (a restore, a failover that lost
-- entries), and the part is refused as a conflict without events.
--
-- Refuses a run twice in one call (22023). Gives up on a lock after 50 ms (55P03), so that one busy
-- run does not hold up its batch; the caller then splits it.
-- Locks: a pure checkpoint none but the events it inserts, by run_id; otherwise first the turn rows
-- of the runs that suspend, end or have commands, of those in p_after_others, and of what they
-- touch, by run_id. Own events are written before those for others, and suspends before wake-ups.
-- Called by workers.
create or replace function holdfast.commit(
    p_worker text, p_token uuid,
    p_runs uuid[], p_leases int[], p_expected int[],
    p_types text[], p_keys text[], p_details json[], p_ats bigint[],
    p_rest_runs uuid[], p_rest_idx int[],
    p_rest_types text[], p_rest_keys text[], p_rest_details json[], p_rest_ats bigint[],
    p_suspended uuid[], p_visible_ats bigint[], p_awaiting json[],
    p_ended uuid[], p_statuses text[], p_outputs json[], p_errors json[],
    p_commanding uuid[], p_touched uuid[], p_parents uuid[], p_after_others uuid[] default '{}',
    p_tell text default null, p_texts boolean default false,
    p_undelivered boolean default false, p_last_ats bigint[] default null,
    out now bigint, out refused json, out notices text[], out ahead json, out undelivered json
)
language plpgsql
set lock_timeout = '50ms'
as $$
declare
    v_now timestamptz := holdfast.now();
    v_skipped uuid[] := '{}';
    v_won uuid[];
    v_children uuid[];
    v_told text[];
begin
    now := holdfast._micros(v_now);
    if cardinality(p_touched) + cardinality(p_parents) > 0 then
        perform holdfast._lock_family(
            p_suspended || p_ended || p_commanding || p_after_others || p_touched
                || holdfast._parents(p_ended)
                || array(select n.newest from holdfast.newest_runs(p_touched) as n),
            p_parents);
    elsif cardinality(p_suspended) + cardinality(p_ended) + cardinality(p_commanding)
            + cardinality(p_after_others) > 0 then
        perform holdfast._lock_turns(p_suspended || p_ended || p_commanding || p_after_others);
    end if;
    if cardinality(p_after_others) > 0 then
        select b.expected, b.last_ats, b.rest_idx, b.ahead
        into p_expected, p_last_ats, p_rest_idx, ahead
        from holdfast._move_after_others(
            p_token, p_runs, p_expected, p_last_ats, p_after_others, p_rest_runs, p_rest_idx) as b;
    end if;

    with won as (
        insert into holdfast.events (run_id, idx, event_type, key, details, at, commit_token)
        select f.run_id, f.idx, f.event_type, f.key, f.details, holdfast._moment(f.at), p_token
        from unnest(p_runs, p_leases, p_expected, p_types, p_keys, p_details, p_ats, p_last_ats)
            as f (run_id, lease_no, idx, event_type, key, details, at, last_at)
        cross join lateral (
            select t.worker, t.lease_no from holdfast.tasks t
            where t.run_id = f.run_id and t.key = '' limit 1
        ) as t
        cross join lateral (
            select e.event_type, e.at from holdfast.events e
            where e.run_id = f.run_id and e.idx = f.idx - 1 limit 1
        ) as e
        where t.worker = p_worker and t.lease_no = f.lease_no
            and holdfast._is_known(e.at, f.last_at)
            and not holdfast._is_terminal(e.event_type)
        order by f.run_id
        on conflict do nothing
        returning run_id
    )
    select array_agg(w.run_id) into v_won from won w;

    if cardinality(v_won) is distinct from cardinality(p_runs) then
        select r.skipped, r.refused into v_skipped, refused
        from holdfast._refusals(
            p_worker, p_token, p_runs, p_leases, p_expected, p_last_ats, v_won, p_texts) as r;
    end if;
    if cardinality(p_rest_runs) > 0 then
        insert into holdfast.events (run_id, idx, event_type, key, details, at)
        select e.run_id, e.idx, e.event_type, e.key, e.details, holdfast._moment(e.at)
        from unnest(p_rest_runs, p_rest_idx, p_rest_types, p_rest_keys, p_rest_details, p_rest_ats)
            as e (run_id, idx, event_type, key, details, at)
        where e.run_id <> all (v_skipped)
        order by e.run_id, e.idx;
    end if;
    if cardinality(p_suspended) > 0 then
        perform holdfast._suspend_runs(
            p_worker, p_suspended, p_visible_ats, p_awaiting, v_skipped);
    end if;
    if cardinality(p_ended) > 0 then
        select e.notices, e.children into notices, v_children
        from holdfast._end_runs(
            v_now, p_ended, p_statuses, p_outputs, p_errors, v_skipped) as e;
    end if;
    if cardinality(p_commanding) > 0 then
        select c.notices, case when p_undelivered then c.undelivered end
        into v_told, undelivered
        from holdfast._carry_out(v_now,
            array(select unnest(p_commanding) except select unnest(v_skipped)), p_ended,
            p_runs || p_rest_runs, p_types || p_rest_types, p_keys || p_rest_keys,
            p_details || p_rest_details) as c;
        notices := notices || v_told;
    end if;
    if v_children is not null then  -- after what their own commands have appended
        notices := notices || holdfast._tell_parents(v_now, v_children);
    end if;
    if cardinality(p_parents) > 0 then
        notices := notices || holdfast._close_children(
            v_now, array(select unnest(p_parents) except select unnest(v_skipped)));
    end if;
    notices := holdfast._tell(p_tell, notices);
end $$;

-- Return true if an entry of the log is the one that a worker knows, by its moment. 0 and null: the
-- worker does not say. Called by commit, _move_after_others and _refusals.
create or replace function holdfast._is_known(p_at timestamptz, p_last_at bigint) returns boolean
language sql immutable parallel safe
return coalesce(p_last_at, 0) = 0 or p_at = holdfast._moment(p_last_at);

-- Move the parts of p_after_others to the ends of their logs, if all that others have appended from
-- the expected index on can wait. A part that an earlier try wrote stays in its place. `ahead` is
-- that of commit.
-- Locks: expects the turn rows of p_after_others locked, so that no other transaction appends.
-- Called by commit.
create or replace function holdfast._move_after_others(
    p_token uuid, p_runs uuid[], p_expected int[], p_last_ats bigint[], p_after_others uuid[],
    p_rest_runs uuid[], p_rest_idx int[], out expected int[], out last_ats bigint[],
    out rest_idx int[], out ahead json
)
language plpgsql
as $$
declare
    v_moved uuid[];
    v_from int[];
    v_to int[];
begin
    select array_agg(u.run_id), array_agg(u.expected), array_agg(coalesce(e.written, e.length))
    into v_moved, v_from, v_to
    from unnest(p_runs, p_expected, p_last_ats) as u (run_id, expected, last_at)
    cross join lateral (
        select min(e.idx) filter (where e.commit_token = p_token) as written,
            max(e.idx) + 1 as length,
            bool_and(case when e.idx >= u.expected then holdfast._can_wait(e.event_type, e.details)
                else holdfast._is_known(e.at, u.last_at) end) as can_wait
        from holdfast.events e
        where e.run_id = u.run_id and e.idx >= u.expected - 1
    ) as e
    where u.run_id = any (p_after_others)
        and (e.written > u.expected or e.can_wait and e.length > u.expected);

    select array_agg(coalesce(m.until, u.expected) order by u.place),
        array_agg(case when m.until is null then u.last_at end order by u.place)
    into expected, last_ats
    from unnest(p_runs, p_expected, p_last_ats) with ordinality
        as u (run_id, expected, last_at, place)
    left join unnest(v_moved, v_to) as m (run_id, until) on m.run_id = u.run_id;
    select coalesce(array_agg(u.idx + coalesce(m.until - m.since, 0) order by u.place), '{}')
    into rest_idx
    from unnest(p_rest_runs, p_rest_idx) with ordinality as u (run_id, idx, place)
    left join unnest(v_moved, v_from, v_to) as m (run_id, since, until) on m.run_id = u.run_id;
    select json_agg(json_build_array(m.run_id, holdfast._tail(m.run_id, m.since, true, m.until)))
    into ahead
    from unnest(v_moved, v_from, v_to) as m (run_id, since, until);
end $$;

-- Return true if a worker's entries that are on their way may be written after this one of others:
-- of a step only a result that its own transaction has added, for any other may be one of these.
-- Called by _move_after_others.
create or replace function holdfast._can_wait(p_event_type text, p_details json) returns boolean
language sql immutable parallel safe
return p_event_type in (
        'SignalReceived', 'ActivityCompleted', 'ActivityFailed', 'ActivityRetryScheduled',
        'ChildCompleted', 'ChildFailed', 'WorkerLost')
    or p_event_type = 'StepCompleted'
        and coalesce(p_details::text, '') like '%,"transaction":true}';

-- Give the leases of suspended runs back, until a moment or until something that they await. Runs
-- in p_skipped are left alone.
-- Locks: expects the turn rows locked. Called by commit.
create or replace function holdfast._suspend_runs(
    p_worker text, p_run_ids uuid[], p_visible_ats bigint[], p_awaiting json[], p_skipped uuid[]
) returns void
language plpgsql
as $$
begin
    update holdfast.tasks t
    set worker = null, sticky_worker = p_worker, attempts = 0, stuck = null, stuck_tries = 0,
        visible_at = coalesce(holdfast._moment(s.visible_at), 'infinity'),
        awaiting = case when s.awaiting is not null
            then array(select json_array_elements_text(s.awaiting)) end
    from unnest(p_run_ids, p_visible_ats, p_awaiting) as s (run_id, visible_at, awaiting)
    cross join lateral (
        select t.ctid from holdfast.tasks t
        where t.run_id = s.run_id and t.key = '' limit 1
    ) as f
    where t.ctid = f.ctid and s.run_id <> all (p_skipped);
end $$;

-- Return the runs of a commit that were not written now (`skipped`), and those of them that no
-- earlier try wrote either (`refused`, as commit returns it). Locks nothing. Called by commit.
create or replace function holdfast._refusals(
    p_worker text, p_token uuid, p_runs uuid[], p_leases int[], p_expected int[],
    p_last_ats bigint[], p_won uuid[], p_texts boolean, out skipped uuid[], out refused json
)
language plpgsql
as $$
begin
    if (select count(distinct u.run_id) < count(*) from unnest(p_runs) as u (run_id)) then
        raise invalid_parameter_value using message = 'a run occurs twice in one commit';
    end if;
    select array_agg(u.run_id) into skipped
    from unnest(p_runs) as u (run_id)
    where u.run_id <> all (coalesce(p_won, '{}'));

    select json_agg(json_build_array(u.run_id,
        case when t.is_ours then 'conflict' else 'lost' end,
        case when t.is_ours and not holdfast._is_known(b.at, u.last_at) then '[]'
            else holdfast._tail(u.run_id, u.expected, p_texts) end))
    into refused
    from unnest(p_runs, p_leases, p_expected, p_last_ats)
        as u (run_id, lease_no, expected, last_at)
    left join lateral (
        select t.worker = p_worker and t.lease_no = u.lease_no as is_ours from holdfast.tasks t
        where t.run_id = u.run_id and t.key = '' limit 1
    ) as t on true
    left join lateral (
        select e.at from holdfast.events e
        where e.run_id = u.run_id and e.idx = u.expected - 1 limit 1
    ) as b on true
    left join lateral (
        select e.commit_token from holdfast.events e
        where e.run_id = u.run_id and e.idx = u.expected limit 1
    ) as e on true
    where u.run_id = any (skipped) and e.commit_token is distinct from p_token;
end $$;
