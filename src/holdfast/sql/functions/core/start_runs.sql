-- Start a run: insert its row, WorkflowStarted and its first task. If the id exists, the run is
-- left as it is, and its status is returned.
--
-- A name is `app/name`; if no app has signed on with the workflow, the run waits for a worker. A
-- null means the default: of the queue, the priority, the timeout and the retention what its
-- code has declared (see _with_declared), else 'default', 2, none and 30 days. Moments
-- are microseconds, durations seconds, tags as attributes.sql says. A waiter
-- is a topic that is told of the run's end. With p_tell, the schema's name, the start wakes workers
-- itself if it can: then `told` is true.
--
-- If the workflow has rules for starts, or p_rules has some (see _rules_of), `run_id` may be
-- another run than the one that was asked for. A start that they refuse raises an error; with
-- p_outcomes it says `refused`, 'singleton' (by run_id) or 'throttle' (until refused_until), and
-- starts nothing.
--
-- PostgreSQL prepares the expressions of a function again in each transaction, also those that are
-- not evaluated. So code that few starts need is in separate branches.
--
-- Refuses values that are not allowed (22004, 22023), and an id that a run of another workflow has
-- (HF001); without p_outcomes also a start that the rules refuse (HF006, HF007).
-- Locks: as _start_ruled, if there are rules; the id that it inserts; an existing run FOR SHARE, if
-- a waiter is given. Called by clients, start_runs, _start_each and, through start_run and
-- start_runs, from SQL; in any transaction.
create or replace function holdfast.start_one(
    p_run_id uuid,
    p_name text,
    p_input json default null,
    p_version int default null,
    p_key text default null,
    p_queue text default null,
    p_priority int default null,
    p_start_at bigint default null,
    p_delay float8 default null,
    p_timeout float8 default null,
    p_retention float8 default null,
    p_tags json default null,
    p_headers json default null,
    p_waiter text default null,
    p_tell text default null,
    p_rules json default null,
    p_outcomes boolean default false,
    out run_id uuid, out created boolean, out status text, out told boolean,
    out refused text, out refused_until bigint
)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_now timestamptz := holdfast.now();
    v_visible_at timestamptz := v_now;
    v_tags text[] := '{}';
    v_build text;
    v_limited boolean;
    v_served boolean;
    v_limit_keys text;
    v_notices text[];
begin
    if num_nonnulls(p_version, p_start_at, p_delay, p_timeout, p_tags, p_headers) > 0
        or not holdfast._is_plain_start(
            p_run_id, p_name, p_input, p_key, p_queue, p_priority, p_retention, p_waiter)
    then
        if not holdfast._is_start(p_run_id, p_name, p_input, p_version, p_key, p_queue, p_priority,
            p_start_at, p_delay, p_timeout, p_retention, p_tags, p_headers, p_waiter)
        then
            perform holdfast._check_start(p_run_id, p_name, p_input, p_version, p_key, p_queue,
                p_priority, p_start_at, p_delay, p_timeout, p_retention, p_tags, p_headers,
                p_waiter);
        end if;
        v_visible_at := coalesce(holdfast._moment(p_start_at),
            v_now + coalesce(p_delay, 0) * interval '1 second');
        if p_tags is not null then
            v_tags := holdfast._tags(p_tags);
        end if;
    end if;
    if p_queue is null or p_priority is null or p_retention is null then
        select d.* into p_queue, p_priority, p_timeout, p_retention
        from holdfast._with_declared(
            p_name, p_queue, p_priority, p_timeout, p_retention) as d;
    end if;
    run_id := p_run_id;

    insert into holdfast.runs (run_id, name, version, key, queue, priority, input, tags,
        headers, retention, deadline_at, created_at, due_at, build)
    select start_one.run_id, p_name, coalesce(p_version, 1), p_key, p_queue,
        p_priority, coalesce(p_input, 'null'), v_tags, p_headers,
        p_retention * interval '1 second',
        greatest(v_now, v_visible_at) + p_timeout * interval '1 second', v_now,
        case when v_visible_at > v_now then v_visible_at end,
        case when exists (select from holdfast.builds)
            then holdfast._build_of_start(start_one.run_id, p_name, coalesce(p_version, 1)) end
    where p_rules is null and not exists (
        select from holdfast.start_rules s where s.name = p_name)
    on conflict do nothing
    returning build, exists (select from holdfast.limits),
        exists (select from holdfast.workers w where p_queue = any (w.queues))
    into v_build, v_limited, v_served;
    created := found;
    if not created then
        if p_rules is not null
            or exists (select from holdfast.start_rules s where s.name = p_name)
        then
            select s.run_id, s.created, s.status, s.refused, holdfast._micros(s.until), s.notices
            into run_id, created, status, refused, refused_until, v_notices
            from holdfast._start_ruled(v_now, holdfast._new_start(run_id, p_name, p_input,
                p_version, p_key, p_queue, p_priority, v_visible_at, p_timeout, p_retention,
                p_tags, p_headers, rules => p_rules)) as s;
            if refused is not null then
                if not p_outcomes then
                    perform holdfast._refuse_start(p_name, refused, run_id, refused_until);
                end if;
                told := false;
                return;
            end if;
        end if;
        if p_waiter is not null then
            perform holdfast._register_waiters(array[run_id], array[p_waiter]);
        end if;
        if not created then
            perform holdfast._check_workflows(array[run_id], array[p_name]);
            status := (
                select r.status from holdfast.runs r
                where r.run_id = start_one.run_id
                    and r.delete_after is distinct from '-infinity');
            if status is null then  -- it was deleted, or a part of it: its retention is over
                perform holdfast._finish_deletions(array[start_one.run_id]);
                select * into run_id, created, status, told, refused, refused_until
                from holdfast.start_one(p_run_id, p_name, p_input, p_version, p_key, p_queue,
                    p_priority, p_start_at, p_delay, p_timeout, p_retention, p_tags, p_headers,
                    p_waiter, p_tell, p_rules, p_outcomes);
                return;
            end if;
        end if;
        told := created and p_tell is not null and holdfast._tell(p_tell, v_notices) is null;
        return;
    end if;
    insert into holdfast.events (run_id, idx, event_type, at)
    values (run_id, 0, 'WorkflowStarted', v_now);
    if p_tags is not null then
        perform holdfast._add_attributes(array[run_id], array[run_id], array[p_tags]);
    end if;
    if v_limited and v_visible_at <= v_now then
        v_limit_keys := holdfast._limit_keys(
            p_queue, p_name || '@' || coalesce(p_version, 1), '', 0, p_input);
    end if;
    insert into holdfast.tasks (
        run_id, queue, handler, priority, visible_at, limited_at, limit_keys)
    values (run_id, p_queue, holdfast._turn_handler(p_name, coalesce(p_version, 1), v_build),
        p_priority, case when v_limit_keys is null then v_visible_at else 'infinity' end,
        case when v_limit_keys is not null then v_visible_at end, v_limit_keys);
    if p_waiter is not null then  -- without a lock: nobody else sees the run yet
        insert into holdfast.waiters (run_id, topic) values (run_id, p_waiter);
    end if;
    status := 'running';
    -- If no worker serves the queue, there is none to wake: one that signs on later finds the run.
    told := p_tell is not null and (not v_served
        or holdfast._tell(p_tell, array[array['work', p_queue]]) is null);
end $$;

-- Start runs, as start_one does. The arrays are parallel; one that is null or short stands for
-- nulls. Only the start of one run wakes workers itself, with p_tell.
--
-- Refuses what start_one does; one run that is refused refuses the whole call.
-- Locks: as _start_ruled, if there are rules; the ids it inserts, in order; FOR SHARE, the existing
-- runs for which a waiter is given. Called by clients, in any transaction.
create or replace function holdfast.start_runs(
    p_run_ids uuid[],
    p_names text[],
    p_inputs json[] default null,
    p_versions int[] default null,
    p_keys text[] default null,
    p_queues text[] default null,
    p_priorities int[] default null,
    p_start_ats bigint[] default null,
    p_delays float8[] default null,
    p_timeouts float8[] default null,
    p_retentions float8[] default null,
    p_tags json[] default null,
    p_headers json[] default null,
    p_waiters text[] default null,
    p_tell text default null,
    p_rules json[] default null,
    p_outcomes boolean default false
) returns table (run_id uuid, created boolean, status text, told boolean, refused text,
    refused_until bigint)
language plpgsql
set enable_nestloop = off
as $$
declare
    v_now timestamptz := holdfast.now();
    v_starts holdfast._start[];
begin
    if cardinality(p_run_ids) = 1 and cardinality(p_names) = 1 then
        return query
        select * from holdfast.start_one(p_run_ids[1], p_names[1], p_inputs[1], p_versions[1],
            p_keys[1], p_queues[1], p_priorities[1], p_start_ats[1], p_delays[1], p_timeouts[1],
            p_retentions[1], p_tags[1], p_headers[1], p_waiters[1], p_tell, p_rules[1],
            p_outcomes);
        return;
    end if;
    if num_nonnulls(p_versions, p_keys, p_start_ats, p_delays, p_timeouts, p_tags, p_headers,
            p_waiters, p_rules) = 0
        and (cardinality(p_run_ids) = all (array[cardinality(p_queues), cardinality(p_priorities),
            cardinality(p_retentions)])) is true
        and holdfast._are_plain_starts(
            p_run_ids, p_names, p_inputs, p_queues, p_priorities, p_retentions)
        and holdfast._start_plain_runs(
            v_now, p_run_ids, p_names[1], p_inputs, p_queues[1], p_priorities, p_retentions)
    then
        return query
        select u.run_id, true, 'running'::text, false, null::text, null::bigint
        from unnest(p_run_ids) as u (run_id);
        return;
    end if;
    v_starts := holdfast._starts(v_now, p_run_ids, p_names, p_inputs, p_versions, p_keys, p_queues,
        p_priorities, p_start_ats, p_delays, p_timeouts, p_retentions, p_tags, p_headers,
        p_waiters, p_rules);
    return query
    select * from holdfast._start_all(v_now, v_starts, p_outcomes);
end $$;

-- Start runs, as start_runs does, of values that are allowed.
-- Locks: as start_runs. Called by start_runs and _start_subscribed.
create or replace function holdfast._start_all(
    p_now timestamptz, p_starts holdfast._start[], p_outcomes boolean
) returns table (run_id uuid, created boolean, status text, told boolean, refused text,
    refused_until bigint)
language plpgsql
as $$
declare
    v_asked record;
    v_created uuid[];
begin
    select array_agg(u.run_id) as run_ids, array_agg(u.name) as names,
        array_agg(u.waiter) as waiters, count(u.rules) as rules
    into v_asked
    from unnest(p_starts) as u;
    if v_asked.rules > 0 or exists (
        select from holdfast.start_rules r where r.name = any (v_asked.names))
    then
        return query
        select * from holdfast._start_each(p_starts, p_outcomes);
        return;
    end if;
    v_created := holdfast._start_runs(p_now, p_starts);
    if num_nonnulls(variadic v_asked.waiters) > 0 then
        perform holdfast._register_waiters(v_asked.run_ids, v_asked.waiters);
    end if;
    if cardinality(v_created) = cardinality(p_starts) then
        return query
        select u.run_id, true, 'running'::text, false, null::text, null::bigint
        from unnest(v_asked.run_ids) as u (run_id);
        return;
    end if;
    perform holdfast._check_workflows(v_asked.run_ids, v_asked.names);
    return query
    select u.run_id,
        u.run_id = any (v_created)
            and row_number() over (partition by u.run_id order by u.place) = 1,
        r.status, false, null::text, null::bigint
    from unnest(v_asked.run_ids) with ordinality as u (run_id, place)
    cross join lateral (
        select r.status from holdfast.runs r where r.run_id = u.run_id limit 1
    ) as r
    order by u.place;
end $$;

-- Start runs of one workflow with no options but these. Returns false, and starts nothing, if an id
-- exists, or if there are builds, limits, or rules of the workflow. No id is looked up first: for
-- two runs that costs more than the subtransaction, which undoes the inserts if one exists.
-- Locks: the ids, in order. Called by start_runs.
create or replace function holdfast._start_plain_runs(
    p_now timestamptz, p_run_ids uuid[], p_name text, p_inputs json[], p_queue text,
    p_priorities int[], p_retentions float8[]
) returns boolean
language plpgsql
as $$
begin
    if exists (select from holdfast.builds) or exists (select from holdfast.limits)
        or exists (select from holdfast.start_rules r where r.name = p_name)
    then
        return false;
    end if;
    begin
        with started as (
            insert into holdfast.runs (
                run_id, name, version, queue, priority, input, retention, created_at)
            select u.run_id, p_name, 1, p_queue, u.priority, coalesce(u.input, 'null'),
                u.retention * interval '1 second', p_now
            from unnest(p_run_ids, p_inputs, p_priorities, p_retentions)
                as u (run_id, input, priority, retention)
            order by u.run_id
            returning run_id, priority
        ), logged as (
            insert into holdfast.events (run_id, idx, event_type, at)
            select s.run_id, 0, 'WorkflowStarted', p_now from started s
        )
        insert into holdfast.tasks (run_id, queue, handler, priority, visible_at)
        select s.run_id, p_queue, holdfast._turn_handler(p_name, 1, null), s.priority, p_now
        from started s;
    exception when unique_violation then
        return false;
    end;
    return true;
end $$;

-- Start many runs, top ones or children. Returns the ids that were new, in no order. The others
-- exist until the transaction ends.
-- Locks: the ids, in order; runs that exist, so that they are not deleted. Called by _start_all,
-- _start_ruled, _start_children, _start_child_steps and _start_ticks.
create or replace function holdfast._start_runs(p_now timestamptz, p_starts holdfast._start[])
returns uuid[]
language plpgsql
set enable_nestloop = off
as $$
declare
    v_created uuid[];
    v_run_ids uuid[];
    v_tags json[];
begin
    with declared as materialized (  -- once for each name: a call for each run would take longest
        select n.name, d.*
        from (
            select distinct u.name from unnest(p_starts) as u
            where num_nulls(u.queue, u.priority, u.retention) > 0
        ) as n
        cross join lateral holdfast._with_declared(n.name, null, null, null, null) as d
    ), asked as materialized (  -- an id that was given twice is that of its first
        select distinct on (u.run_id) u.run_id, u.name, coalesce(u.version, 1) as version, u.key,
            coalesce(u.queue, d.queue) as queue,
            coalesce(u.priority, d.priority)::smallint as priority,
            coalesce(u.input, 'null') as input, u.tags, u.headers,
            case when num_nulls(u.queue, u.priority, u.retention) = 0 then u.timeout
                else coalesce(u.timeout, d.timeout) end as timeout,
            coalesce(u.retention, d.retention) as retention, u.visible_at, u.parent_run_id,
            u.parent_key, u.parent_close, u.singleton_key, u.awaiting,
            case when exists (select from holdfast.builds) then holdfast._build_of_start(
                u.run_id, u.name, coalesce(u.version, 1), u.parent_run_id) end as build
        from unnest(p_starts) with ordinality as u
        left join declared d on d.name = u.name
        order by u.run_id, u.ordinality
    ), started as (
        insert into holdfast.runs (run_id, name, version, key, queue, priority, input, tags,
            headers, retention, deadline_at, created_at, parent_run_id, parent_key, parent_close,
            singleton_key, due_at, build)
        select a.run_id, a.name, a.version, a.key, a.queue, a.priority, a.input,
            case when a.tags is null then '{}' else holdfast._tags(a.tags) end,
            a.headers, a.retention * interval '1 second',
            nullif(greatest(p_now, a.visible_at) + a.timeout * interval '1 second', 'infinity'),
            p_now, a.parent_run_id, a.parent_key, a.parent_close, a.singleton_key,
            case when a.visible_at > p_now and a.visible_at < 'infinity' then a.visible_at end,
            a.build
        from asked a
        on conflict do nothing
        returning run_id
    ), logged as (
        insert into holdfast.events (run_id, idx, event_type, at)
        select s.run_id, 0, 'WorkflowStarted', p_now from started s
    ), queued as (
        insert into holdfast.tasks (run_id, queue, handler, priority, visible_at, parent_run_id,
            awaiting, limited_at, limit_keys)
        select a.run_id, a.queue, holdfast._turn_handler(a.name, a.version, a.build), a.priority,
            case when l.keys is null then a.visible_at else 'infinity' end, a.parent_run_id,
            case when a.awaiting is not null then array[a.awaiting] end,
            case when l.keys is not null then a.visible_at end, l.keys
        from asked a join started s on s.run_id = a.run_id
        cross join lateral (
            select case when a.visible_at <= p_now and exists (select from holdfast.limits)
                then holdfast._limit_keys(
                    a.queue, a.name || '@' || a.version, '', 0, a.input) end as keys
        ) as l
    )
    select (select coalesce(array_agg(s.run_id), '{}') from started s), array_agg(a.run_id),
        array_agg(a.tags)
    into v_created, v_run_ids, v_tags
    from asked a;
    if num_nonnulls(variadic v_tags) > 0 then
        perform holdfast._add_attributes(v_created, v_run_ids, v_tags);
    end if;
    if cardinality(v_created) < cardinality(p_starts) and not holdfast._hold_runs(v_run_ids) then
        -- One of the others was deleted meanwhile: its retention is over.
        return v_created || holdfast._start_runs(p_now, p_starts);
    end if;
    return v_created;
end $$;
