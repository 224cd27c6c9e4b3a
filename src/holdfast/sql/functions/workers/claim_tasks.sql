-- Claim tasks: choose what is due, lock it, lease it.

-- Lease due tasks of these queues and handlers: the most urgent first, then the oldest. Nothing of
-- a paused queue, workflow or run is leased.
--
-- Each row is a task, except the last one: it has no run_id and is about the claim as a whole. It
-- has the time; when to ask again (at once if the limit was reached, null for never); (topic,
-- payload) notices; the watermark, up to which tasks were taken; the poisoned runs; and, if expired
-- leases were searched for, how many pages were read, and whether suspects were found.
--
-- p_since hides tasks that were due before that moment: if vacuum is held back, dead index entries
-- gather there. Callers pass an earlier watermark; now and then they pass null, or, with p_until, a
-- part of the past. Expired leases are searched for from p_leased_since on; if that is null, from
-- the beginning if p_since is null too, otherwise not at all. p_within_seconds limits the search
-- for the task that comes due next.
--
-- A run begins when it is first claimed, but not before its log begins: a claim may have read the
-- time before the start did. `started_at` is where the clock of its code begins: that of a fork has
-- the clock of its origin, and `first_claimed_at` says when the fork began itself.
--
-- A task that a limit concerns is leased if the limits allow it, otherwise it waits; `limited` is
-- true in the last row if such tasks wait.
--
-- If another worker suspended a task and was heard in the last three seconds, the task is left
-- to that worker until p_sticky_seconds after it came due. An expired lease is left to a worker
-- that is still signed on, unless p_worker was heard without a gap for the length of a lease:
-- the database may have been away, and the holder will be heard again. A holder that was heard
-- without a gap for a quarter of a lease has named its leases, and this one was not among them:
-- it does not know of the claim. If an expired lease is taken over, the run's log gets
-- WorkerLost. A turn that lost p_max_attempts workers without progress is not leased again: its
-- run is poisoned, and the caller calls fail_poisoned, which locks the run's whole family in one
-- order. The policy of an activity is applied by its worker: its attempts may be used up here. A
-- task that has lost three workers is a suspect: a worker holds only one suspect at a time, until
-- a turn makes progress, so that a task that kills its workers does not take other suspects along.
-- `suspects` is true if suspects were found, the one that was leased among them.
--
-- The worker that suspended the run last is given `tail`, the log from `tail_from` on: from its
-- last claim if the log has grown only a little since, otherwise from the log's end. Other workers
-- get no tail. Its details are text; workers of releases before p_texts get them as JSON. With
-- p_properties, a task without `tail_from` has the key and the headers that its run was started
-- with, so that the wake-up of a cached run reads no further table. With the task of a step comes
-- the hash of its flow's shape, '' for one that SQL has made: workers with another shape leave it.
-- Expired leases are mostly asked for by workers without work. So such a claim looks first, and
-- most of them end there: to choose and lock tasks takes a large statement.
-- Locks: task rows, and the turn rows of activities with expired leases, skipping locked ones; then
-- events, run by run. Called by workers.
create or replace function holdfast.claim_tasks(
    p_worker text, p_queues text[], p_handlers text[], p_limit int,
    p_lease_seconds float8, p_ahead_seconds float8 default 0, p_sticky_seconds float8 default 0.25,
    p_max_attempts int default 5, p_since bigint default null, p_until bigint default null,
    p_leased_since bigint default null, p_within_seconds float8 default null,
    p_texts boolean default false, p_properties boolean default false
) returns table (
    now bigint, next_due_at bigint, notices text[], watermark bigint,
    run_id uuid, key text, kind text, queue text, handler text, attempts int, lease_no int,
    log_length int, started_at bigint, input json, deadline_at bigint, payload json,
    heartbeat json, parent_run_id uuid, tail_from int, tail json, poisoned uuid[],
    pages int, run_key text, headers json, limited boolean, first_claimed_at bigint,
    suspects boolean, shape_hash text
)
language plpgsql
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := holdfast.now();
    v_ahead timestamptz := v_now + p_ahead_seconds * interval '1 second';
    v_sticky interval := p_sticky_seconds * interval '1 second';
    v_rivals text[] := array(
        select w.worker_id from holdfast.workers w
        where w.worker_id <> p_worker and holdfast._is_heard(w.heard_at, v_now, 3));
    v_since timestamptz := coalesce(holdfast._moment(p_since), '-infinity');
    v_until timestamptz := least(v_ahead, holdfast._moment(p_until));
    v_leased timestamptz := case when p_since is null then '-infinity'
        else holdfast._moment(p_leased_since) end;
    v_horizon timestamptz := case when p_until is not null then v_until
        else coalesce(v_now + p_within_seconds * interval '1 second', 'infinity') end;
    v_spared text[];
    v_is_due boolean;
    v_next timestamptz;
    v_is_known boolean;  -- true if this claim does not change v_next
    v_run_ids uuid[];
    v_keys text[];
    v_newest timestamptz;
    v_expired boolean;
    v_suspects boolean;
    v_inputs text[];
    v_hashes text[];
    v_limited timestamptz;
    v_waiting boolean;
begin
    if exists (select from holdfast.pauses) then
        select * into p_queues, p_handlers from holdfast._unpaused(p_queues, p_handlers);
    end if;
    if v_leased is not null then  -- mostly by a worker without work: look before anything is locked
        pages := - holdfast._pages_of_tasks();
        select l.due_at is not null, l.next_at, l.is_whole into v_is_due, v_next, v_is_known
        from holdfast._look(v_rivals, p_queues, p_handlers, least(v_since, v_ahead - v_sticky),
            v_ahead, v_sticky, v_horizon) as l;
        if holdfast._has_expired(p_queues, p_handlers, v_leased, least(v_now, v_until)) then
            v_spared := holdfast._spared(p_worker, v_now, p_lease_seconds);
        else
            v_leased := null;
        end if;
    end if;
    if v_is_due is not false or v_leased is not null then
        select d.run_ids, d.keys, d.newest, d.expired, d.suspects,
            v_is_known and not d.missed and v_since <= v_ahead - v_sticky
        into v_run_ids, v_keys, v_newest, v_expired, v_suspects, v_is_known
        from holdfast._lock_due(p_worker, v_rivals, v_spared, p_queues, p_handlers, p_limit,
            least(v_now, v_until), v_until, v_ahead - v_sticky, v_since, v_leased) as d;
    end if;
    if pages is not null then
        pages := pages + holdfast._pages_of_tasks();
        suspects := coalesce(v_suspects, false);
    end if;
    if exists (select from holdfast.limits) then
        v_is_known := v_is_known and v_run_ids is null;  -- what a limit leaves may be due
        select l.run_ids, l.keys, l.newest, l.next_at, l.are_waiting
        into v_run_ids, v_keys, v_newest, v_limited, v_waiting
        from holdfast._apply_limits(v_now, p_queues, p_handlers, p_limit, p_until is null,
            v_run_ids, v_keys, v_newest) as l;
    end if;
    if v_expired then
        select * into v_run_ids, v_keys, poisoned
        from holdfast._lock_lost(v_run_ids, v_keys, p_max_attempts);
        perform holdfast._record_lost_workers(v_now, v_run_ids, v_keys);
    end if;

    if v_run_ids is not null then
        if '' <> any (v_keys) then
            select s.inputs, s.hashes into v_inputs, v_hashes
            from holdfast._given_to_steps(v_run_ids, v_keys) as s;
        end if;
        return query
        with leased as (
            update holdfast.tasks t
            set worker = p_worker, visible_at = v_now + p_lease_seconds * interval '1 second',
                attempts = t.attempts + 1, lease_no = t.lease_no + 1, claimed_idx = l.length,
                awaiting = null, limited_at = null,
                started_at = coalesce(t.started_at, greatest(v_now, l.at))
            from unnest(v_run_ids, v_keys, v_inputs, v_hashes) with ordinality
                as u (run_id, key, input, shape_hash, ord)
            cross join lateral (
                select e.idx + 1 as length, e.at, e.key as last_key from holdfast.events e
                where e.run_id = u.run_id
                order by e.idx desc limit 1
            ) as l
            cross join lateral (
                select t.ctid, case when t.sticky_worker = p_worker and t.worker is null
                    then case when l.length - t.claimed_idx <= 8
                        then t.claimed_idx else l.length end end as since
                from holdfast.tasks t
                where t.run_id = u.run_id and t.key = u.key limit 1
            ) as f
            where t.ctid = f.ctid
            returning t.run_id, t.key, t.kind, t.queue, t.handler, t.attempts, t.lease_no,
                t.claimed_idx, t.clock_at, t.started_at, t.payload, t.heartbeat, t.parent_run_id,
                u.input, u.shape_hash, u.ord, f.since, l.last_key
        )
        select null::bigint, null::bigint, null::text[], null::bigint,
            t.run_id, t.key, t.kind, t.queue, t.handler, t.attempts, t.lease_no,
            t.claimed_idx, holdfast._micros(coalesce(t.clock_at, t.started_at)),
            case when t.claimed_idx = 1 and t.last_key is null then r.input end,
            case when t.claimed_idx = 1 then holdfast._micros(r.deadline_at) end,
            coalesce(t.payload, t.input::json), t.heartbeat, t.parent_run_id,
            t.since, case when t.since < t.claimed_idx
                then holdfast._tail(t.run_id, t.since, p_texts)
                when t.since is not null then '[]' end,
            null::uuid[], null::int, case when not p_properties then null
                when t.kind = 'step' then holdfast._known_key(t.run_id, r.key) else r.key end,
            case when p_properties then r.headers end, null::boolean,
            case when t.clock_at is not null then holdfast._micros(t.started_at) end, null::boolean,
            t.shape_hash
        from leased t
        left join lateral (
            select r.input, r.deadline_at, r.key, r.headers from holdfast.runs r
            where (t.claimed_idx = 1 or p_properties and t.since is null)
                and r.run_id = t.run_id
            limit 1
        ) as r on true
        order by t.ord;
    end if;

    if coalesce(cardinality(v_run_ids), 0) + coalesce(cardinality(poisoned), 0) >= p_limit
        or p_until is not null
    then
        v_next := v_now;
    elsif v_is_known is not true then
        v_next := holdfast._next_due(v_rivals, p_queues, p_handlers, v_ahead, v_sticky, v_horizon);
    end if;
    now := holdfast._micros(v_now);
    next_due_at := holdfast._micros(least(v_next, v_limited));
    watermark := holdfast._micros(least(v_newest, v_now));
    limited := v_waiting;
    return next;
end $$;

-- Return true if a worker may have a free task that is due. If a rival has the run in its cache,
-- the task must have come due by p_rivals_until. Called by _lock_due.
create or replace function holdfast._may_have(
    p_sticky_worker text, p_rivals text[], p_visible_at timestamptz, p_rivals_until timestamptz
) returns boolean
language sql immutable
return p_sticky_worker is null or p_sticky_worker <> all (p_rivals)
    or p_visible_at <= p_rivals_until;

-- Return the queues and handlers that are not paused. Versions of workflows begin at 1, so an
-- activity with the name of a workflow is another handler. Called by claim_tasks and next_due.
create or replace function holdfast._unpaused(inout p_queues text[], inout p_handlers text[])
language sql stable
as $$
    select array(
        select q.queue from unnest(p_queues) as q (queue)
        where not exists (
            select from holdfast.pauses p where p.scope = 'queue' and p.name = q.queue)
    ), array(
        select h.handler from unnest(p_handlers) as h (handler)
        where h.handler like '%@0' or not exists (
            select from holdfast.pauses p
            where p.scope = 'workflow' and p.name = regexp_replace(h.handler, '@[^@]*$', ''))
    )
$$;

-- Choose due tasks and lock them. To choose does not lock, so only tasks that are taken get locked;
-- if other claims were faster, a second try takes what it can lock, range by range, and one of the
-- suspects. Expired leases are searched for from p_leased on, null for not at all. `newest` is the
-- latest visible_at of the tasks; `expired` is true if one of them had an expired lease; `missed`
-- if there was a second try.
-- Its parameters stay: a claim that is under way while functions are replaced calls this one.
-- Locks: task rows, skipping locked ones. Called by claim_tasks.
create or replace function holdfast._lock_due(
    p_worker text, p_rivals text[], p_spared text[], p_queues text[], p_handlers text[],
    p_limit int, p_now timestamptz, p_ahead_until timestamptz, p_rivals_until timestamptz,
    p_since timestamptz, p_leased timestamptz, out run_ids uuid[], out keys text[],
    out newest timestamptz, out expired boolean, out suspects boolean, out missed boolean
)
language plpgsql
set enable_bitmapscan = off
as $$
begin
    with candidates as materialized (
        select t.run_id, t.key, t.priority, t.visible_at, false as suspect, false as waits
        from holdfast._free_ranges(p_queues, p_handlers, p_since, p_ahead_until) as l
        cross join lateral (
            select t.run_id, t.key, t.priority, t.visible_at
            from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler and t.priority = l.priority
                and t.worker is null and not t.paused
                and t.visible_at > p_since and t.visible_at <= p_ahead_until
                and holdfast._may_have(t.sticky_worker, p_rivals, t.visible_at, p_rivals_until)
            order by t.visible_at limit p_limit
        ) as t
        union all
        select * from holdfast._expired(
            p_worker, p_queues, p_handlers, p_limit, p_now, p_leased, p_spared)
        where p_leased is not null
    ), due as materialized (
        select c.run_id, c.key, c.priority, c.visible_at
        from candidates c
        where not c.waits
        order by c.priority, c.visible_at, c.run_id, c.key limit p_limit
    ), locked as (
        select t.run_id, t.key, t.visible_at, t.worker, t.priority
        from due d
        cross join lateral (
            select t.run_id, t.key, t.visible_at, t.worker, t.priority from holdfast.tasks t
            where t.run_id = d.run_id and t.key = d.key and not t.paused
                and t.queue = any (p_queues)  -- it may have been moved since it was chosen
                and case when t.worker is null then t.visible_at <= p_ahead_until
                    else t.visible_at <= p_now end
            for update skip locked
        ) as t
    )
    select array_agg(l.run_id order by l.priority, l.visible_at, l.run_id, l.key),
        array_agg(l.key order by l.priority, l.visible_at, l.run_id, l.key),
        max(l.visible_at), bool_or(l.worker is not null),
        case when p_leased is not null
            then exists (select from candidates c where c.suspect) end,
        count(*) < (select count(*) from due)
    into run_ids, keys, newest, expired, suspects, missed
    from locked l;
    if not missed then
        return;
    end if;

    select array_agg(t.run_id), array_agg(t.key), max(t.visible_at), bool_or(t.worker is not null)
    into run_ids, keys, newest, expired
    from (
        (select t.run_id, t.key, t.visible_at, t.worker
        from (
            select * from holdfast._ranges(p_queues, p_handlers) as l
            where suspects and not holdfast._holds_suspect(p_worker, p_now)
            order by l.priority, random()
        ) as l
        cross join lateral (
            select * from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler and t.priority = l.priority
                and t.worker is not null and not t.paused
                and t.visible_at > p_leased and t.visible_at <= p_now
                and t.worker <> all (p_spared)
                and t.attempts >= 3
                and (t.key = '' or holdfast._lost_before(t.run_id, t.key, 2))
            order by t.visible_at limit 1
            for update skip locked
        ) as t
        limit 1)
        union all
        (select t.run_id, t.key, t.visible_at, t.worker
        from (
            select * from holdfast._free_ranges(p_queues, p_handlers, p_since, p_ahead_until) as l
            order by l.priority, random()
        ) as l
        cross join lateral (
            select * from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler and t.priority = l.priority
                and t.worker is null and not t.paused
                and t.visible_at > p_since and t.visible_at <= p_ahead_until
                and holdfast._may_have(t.sticky_worker, p_rivals, t.visible_at, p_rivals_until)
            order by t.visible_at limit p_limit
            for update skip locked
        ) as t)
        limit p_limit
    ) as t;
end $$;

-- Return how many pages of tasks, and of the indexes by which claims find them, this transaction
-- has read; callers use the difference of two calls. One expression, without a query. Called by
-- claim_tasks.
create or replace function holdfast._pages_of_tasks() returns int
language plpgsql volatile
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return coalesce(pg_stat_get_xact_blocks_fetched(to_regclass($n$holdfast.tasks$n$)), 0)
        + coalesce(pg_stat_get_xact_blocks_fetched(to_regclass($n$holdfast.tasks_pkey$n$)), 0)
        + coalesce(pg_stat_get_xact_blocks_fetched(to_regclass($n$holdfast.tasks_due$n$)), 0)
        + coalesce(pg_stat_get_xact_blocks_fetched(to_regclass($n$holdfast.tasks_leased$n$)), 0);
end $$;
