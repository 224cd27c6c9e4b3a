-- Workers that speak SQL only, in two phases: read messages of due tasks, then start those that are
-- worked on. The names and parameters are those of the flows that pgflow has made known.

-- Return the number by which SQL workers call a task: it stays the same for all its attempts.
-- Called by read_tasks, _lease_messages, _lock_messages and _fail_illegible.
create or replace function holdfast.message_id(p_run_id uuid, p_key text) returns bigint
language sql immutable parallel safe
return hashtextextended(p_run_id::text || ' ' || p_key, 0) & 9223372036854775807;

-- List the ranges of a flow's free tasks, in all its versions. A run may have a queue of its own,
-- so the queues are those that have free tasks: one probe each, however many tasks there are.
-- Called by read_tasks, _check_unlimited, _lock_messages and _fail_illegible.
create or replace function holdfast._ranges_of(p_flow_slug text)
returns table (queue text, handler text, priority int)
language sql stable
set enable_seqscan = off
as $$
    with recursive queues as (
        (select t.queue from holdfast.tasks t where t.worker is null order by t.queue limit 1)
        union all
        select n.queue
        from queues q
        cross join lateral (
            select t.queue from holdfast.tasks t
            where t.worker is null and t.queue > q.queue order by t.queue limit 1
        ) as n
    )
    select q.queue, f.handler, p.priority
    from holdfast.flows f
    cross join queues q
    cross join generate_series(0, 4) as p (priority)
    where f.flow_slug = p_flow_slug
$$;

-- Refuse to hand out tasks that a limit concerns: what a worker in SQL executes would not count for
-- it (22023). Called by read_tasks and _lease_messages.
create or replace function holdfast._check_unlimited(p_flow_slug text) returns void
language plpgsql stable
reset enable_seqscan
as $$
declare
    v_limit record;
begin
    if not exists (select from holdfast.limits) then
        return;
    end if;
    select l.scope, l.name into v_limit
    from holdfast.limits l
    where not l.removed and exists (
        select from holdfast._ranges_of(p_flow_slug) as r
        where holdfast._concerns(l.scope, l.name, r.queue, r.handler))
    order by l.limit_id limit 1;
    if found then
        raise invalid_parameter_value using message = format(
            'steps of flow %s are limited, by a limit of the %s %s, which workers in SQL cannot '
            'obey: remove the limit, give the flow a queue without limits, or let holdfast workers '
            'execute its steps', p_flow_slug, v_limit.scope, v_limit.name);
    end if;
end $$;

-- Reserve up to p_qty due tasks of a flow: nobody else is given them for p_vt seconds. Their
-- attempts do not count. Refuses an unknown flow (HF003), values that are not allowed and steps
-- that a limit concerns (22004, 22023). Locks: task rows, skipping locked ones. Called by
-- read_with_poll and users.
create or replace function holdfast.read_tasks(p_flow_slug text, p_vt int, p_qty int)
returns setof holdfast.message_record
language plpgsql
as $$
declare
    v_now timestamptz := holdfast._clock();
    v_slug text := regexp_replace(holdfast._newest_shape(p_flow_slug), '@[0-9]+$', '');
begin
    if v_slug is null then
        raise sqlstate 'HF003' using message = format('flow %s does not exist', p_flow_slug);
    end if;
    perform holdfast._check_given('vt', p_vt is not null);
    perform holdfast._check_seconds('vt', p_vt);
    perform holdfast._check_given('qty', p_qty is not null);
    perform holdfast._limit(p_qty);
    perform holdfast._check_unlimited(v_slug);
    return query
    with due as materialized (
        select t.run_id, t.key, row_number() over (order by l.priority, t.due_at) as place
        from holdfast._ranges_of(v_slug) as l
        cross join lateral (
            select * from (
                select t.run_id, t.key, t.visible_at as due_at from holdfast.tasks t
                where t.queue = l.queue and t.handler = l.handler and t.priority = l.priority
                    and t.worker is null and not t.paused and t.kind = 'step'
                    and t.visible_at <= v_now
                order by t.visible_at limit p_qty
                for update skip locked
            ) as d
            union all
            select * from (  -- what waited for limits that are removed
                select t.run_id, t.key, t.limited_at as due_at from holdfast.tasks t
                where t.queue = l.queue and t.handler = l.handler and t.priority = l.priority
                    and t.worker is null and not t.paused and t.kind = 'step'
                    and t.limited_at is not null
                limit p_qty
                for update skip locked
            ) as f
        ) as t
        where not exists (
            select from holdfast.pauses p where p.scope = 'queue' and p.name = l.queue
                or p.scope = 'workflow' and p.name = v_slug)
        order by 3 limit p_qty
    ), reserved as (
        update holdfast.tasks t
        set visible_at = v_now + p_vt * interval '1 second', limited_at = null,
            message_id = holdfast.message_id(t.run_id, t.key)
        from due d
        where t.run_id = d.run_id and t.key = d.key
        returning t.run_id, t.key, t.attempts, t.visible_at, t.handler, d.place
    )
    select holdfast.message_id(r.run_id, r.key), r.attempts, s.started_at, r.visible_at,
        jsonb_build_object('flow_slug', regexp_replace(r.handler, '@[0-9]+$', ''),
            'run_id', r.run_id, 'step_slug', split_part(r.key, ':', 1),
            'task_index', coalesce(nullif(split_part(r.key, ':', 2), '')::int, 0))
    from reserved r
    cross join lateral (
        select t.started_at from holdfast.tasks t where t.run_id = r.run_id and t.key = '' limit 1
    ) as s
    order by r.place;
end $$;

-- Reserve tasks as read_tasks does, and wait for some. Do not call it in a transaction that has to
-- end soon. Called by users.
create or replace function holdfast.read_with_poll(
    queue_name text, vt int, qty int, max_poll_seconds int default 5,
    poll_interval_ms int default 100
) returns setof holdfast.message_record
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_until timestamptz := clock_timestamp() + max_poll_seconds * interval '1 second';
begin
    loop
        return query select * from holdfast.read_tasks(queue_name, vt, qty);
        exit when found or clock_timestamp() >= v_until;
        perform pg_sleep(greatest(poll_interval_ms, 10) / 1000.0);
    end loop;
end $$;

-- Lock the free tasks of a flow that SQL workers call by these numbers. Those that were read are
-- found by the number; only what is not found there is looked for among those that are due. Tasks
-- that nobody has read and that are not due are left out: thousands may wait for a delay.
-- Locks: task rows, skipping locked ones. Called by _lease_messages.
create or replace function holdfast._lock_messages(
    p_flow_slug text, p_msg_ids bigint[], p_now timestamptz
) returns table (run_id uuid, key text, handler text)
language plpgsql
as $$
declare
    v_missing int := (select count(distinct m.id) from unnest(p_msg_ids) as m (id));
    v_found int;
begin
    return query
    select t.run_id, t.key, t.handler
    from (select distinct m.id from unnest(p_msg_ids) as m (id)) as u
    cross join lateral (
        select t.run_id, t.key, t.handler from holdfast.tasks t
        where t.message_id = u.id and t.worker is null and t.kind = 'step' and not t.paused
            and regexp_replace(t.handler, '@[0-9]+$', '') = p_flow_slug
        for update skip locked
    ) as t;
    get diagnostics v_found = row_count;
    if v_found >= v_missing then
        return;
    end if;
    return query
    select t.run_id, t.key, t.handler
    from holdfast._ranges_of(p_flow_slug) as l
    cross join lateral (
        select t.run_id, t.key, t.handler from holdfast.tasks t
        where t.queue = l.queue and t.handler = l.handler and t.priority = l.priority
            and t.visible_at <= p_now and t.message_id is null
            and t.worker is null and t.kind = 'step' and not t.paused
            and holdfast.message_id(t.run_id, t.key) = any (p_msg_ids)
        for update skip locked
    ) as t;
end $$;

-- Begin attempts at tasks that were read: they are leased to the worker for the step's timeout and
-- two seconds. Tasks that another worker has started, or whose step has ended, are left out. One
-- whose input jsonb cannot hold fails. Refuses what read_tasks refuses.
-- Locks: task rows, skipping locked ones; if one fails, as end_step_tasks before. Called by users.
create or replace function holdfast.start_tasks(
    flow_slug text, msg_ids bigint[], worker_id uuid
) returns setof holdfast.step_task_record
language plpgsql
as $$
begin
    begin
        return query
        select s.* from holdfast._lease_messages(start_tasks.flow_slug, msg_ids, worker_id) as s;
        return;
    exception when data_exception or program_limit_exceeded then
        if not holdfast._fail_illegible(start_tasks.flow_slug, msg_ids, worker_id) then
            raise;
        end if;
    end;
    return query
    select s.* from holdfast.start_tasks(start_tasks.flow_slug, msg_ids, worker_id) as s;
end $$;

-- Lease tasks as start_tasks says. Locks: task rows, skipping locked ones. Called by start_tasks.
create or replace function holdfast._lease_messages(
    flow_slug text, msg_ids bigint[], worker_id uuid
) returns setof holdfast.step_task_record
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_found record;
    v_now timestamptz := holdfast._clock();
    v_slug text := regexp_replace(
        holdfast._newest_shape(_lease_messages.flow_slug), '@[0-9]+$', '');
begin
    if v_slug is null then
        raise sqlstate 'HF003' using
            message = format('flow %s does not exist', _lease_messages.flow_slug);
    end if;
    perform holdfast._check_given('the worker''s id', worker_id is not null);
    perform holdfast._check_unlimited(v_slug);
    select array_agg(f.run_id) as run_ids, array_agg(f.key) as keys,
        array_agg(f.handler) as handlers
    into v_found
    from holdfast._lock_messages(v_slug, msg_ids, v_now) as f;
    return query
    with leased as (
        update holdfast.tasks t
        set worker = worker_id::text, lease_no = t.lease_no + 1, attempts = t.attempts + 1,
            claimed_idx = 1, started_at = coalesce(t.started_at, v_now),
            visible_at = v_now + (2 + o.timeout) * interval '1 second', limited_at = null
        from unnest(v_found.run_ids, v_found.keys, v_found.handlers) as f (run_id, key, handler)
        cross join lateral holdfast._step_options(f.handler, split_part(f.key, ':', 1)) as o
        where t.run_id = f.run_id and t.key = f.key
        returning t.*
    )
    select regexp_replace(l.handler, '@[0-9]+$', ''), l.run_id, split_part(l.key, ':', 1),
        coalesce(l.payload::text, i.input)::jsonb,
        holdfast.message_id(l.run_id, l.key),
        coalesce(nullif(split_part(l.key, ':', 2), '')::int, 0), l.attempts, l.lease_no
    from leased l
    left join lateral holdfast._step_input(
        l.run_id, l.handler, l.key, l.payload is null) as i on true;
end $$;

-- Make tasks due again whose workers let their time run out: WorkerLost. One that was lost three
-- times before fails. Returns how many are due again. Call it now and then if no holdfast worker
-- serves the flow. A task whose row or whose run's turn row is locked is left for the next call.
-- Locks: of runs that fail, as fail_poisoned; then task rows and turn rows, skipping locked ones;
-- events. Called by users, in any number of sessions at once.
create or replace function holdfast.requeue_stalled_tasks() returns int
language plpgsql
as $$
declare
    v_now timestamptz := holdfast._clock();
    v_lost uuid[] := array(
        select distinct t.run_id from holdfast.tasks t
        where t.worker is not null and t.kind = 'step' and t.visible_at <= v_now
            and not t.paused and t.losses >= 3 and not t.innocent);
    v_due record;
    v_count int;
begin
    if cardinality(v_lost) > 0 then
        perform holdfast.fail_poisoned(v_lost, 2147483647);
    end if;
    select array_agg(t.run_id) as run_ids, array_agg(t.key) as keys into v_due
    from (
        select t.run_id, t.key from holdfast.tasks t
        where t.worker is not null and t.kind = 'step' and t.visible_at <= v_now
            and not t.paused and (t.losses < 3 or t.innocent)
        for update skip locked
    ) as t;
    select l.p_run_ids as run_ids, l.p_keys as keys into v_due
    from holdfast._lock_lost(v_due.run_ids, v_due.keys, 2147483647) as l;
    perform holdfast._record_lost_workers(v_now, v_due.run_ids, v_due.keys);
    update holdfast.tasks t
    set worker = null, visible_at = v_now, claimed_idx = 0
    from unnest(v_due.run_ids, v_due.keys) as u (run_id, key)
    where t.run_id = u.run_id and t.key = u.key;
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- Return the key of a step's task in a run: of an element of a map with its index. Called by
-- complete_task and fail_task.
create or replace function holdfast._task_key(p_run_id uuid, p_step text, p_index int) returns text
language plpgsql stable
as $$
declare
    v_type text;
begin
    perform holdfast._check_given('the run id', p_run_id is not null);
    perform holdfast._check_slug(p_step);
    select s.step_type into v_type
    from (
        select r.name || '@' || r.version as handler from holdfast.runs r
        where r.run_id = p_run_id and r.kind = 'flow' limit 1
    ) as r
    join holdfast.steps s on s.handler = r.handler and s.step_slug = p_step;
    if not found then
        raise sqlstate 'HF003' using message = format(
            'run %s has no step %s', p_run_id, p_step);
    end if;
    return case v_type when 'map' then p_step || ':' || coalesce(p_index, 0) else p_step end;
end $$;

-- End the open attempt at a task with its output, whichever worker has it; with lease_no only that
-- attempt. Returns 'recorded', or 'lost' if no such attempt is open. Refuses a run or a step that
-- does not exist (HF003). Locks: as end_step_tasks. Called by users.
create or replace function holdfast.complete_task(
    run_id uuid, step_slug text, task_index int, output jsonb, lease_no int default null
) returns text
language sql
as $$
    select e.outcomes[1] from holdfast.end_step_tasks(null, array[complete_task.run_id],
        array[holdfast._task_key(complete_task.run_id, step_slug, task_index)],
        array[complete_task.lease_no], array[coalesce(output::json, 'null')],
        p_now => holdfast._clock()) as e
    limit 1
$$;

-- End the open attempt at a task with an error, as complete_task does with an output. Returns
-- 'retried' if another attempt follows, else 'recorded' or 'lost'. Locks: as end_step_tasks. Called
-- by users.
create or replace function holdfast.fail_task(
    run_id uuid, step_slug text, task_index int, error_message text, lease_no int default null
) returns text
language sql
as $$
    select e.outcomes[1] from holdfast.end_step_tasks(null, array[fail_task.run_id],
        array[holdfast._task_key(fail_task.run_id, step_slug, task_index)],
        array[fail_task.lease_no], array[null::json],
        array[json_build_object('kind', 'builtins.Exception',
            'message', coalesce(error_message, ''))], p_now => holdfast._clock()) as e
    limit 1
$$;
