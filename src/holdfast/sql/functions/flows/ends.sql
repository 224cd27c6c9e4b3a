-- The ends of attempts at steps.

-- Lock what a call about runs of flows changes: their turn rows and those of all that are told of
-- their ends, by run_id; if runs are steps of one of them, also those that end with it. Called by
-- all that end steps.
create or replace function holdfast._lock_flows(p_run_ids uuid[]) returns void
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    if holdfast._are_nested(p_run_ids) then
        perform holdfast._lock_family(p_run_ids || holdfast._parents(p_run_ids), '{}');
    else
        perform holdfast._lock_turns(p_run_ids);
    end if;
end $$;

-- Lock the turn rows of runs whose maps have completed, if that needs no waiting: who holds tasks
-- must not wait for a turn. Raises HF004 otherwise. Locks: turn rows, skipping locked ones. Called
-- by end_step_tasks.
create or replace function holdfast._try_lock_flows(p_run_ids uuid[]) returns void
language plpgsql
as $$
begin
    if cardinality(holdfast._parents(p_run_ids)) > 0 or cardinality(p_run_ids) > (
        select count(*) from unnest(p_run_ids) as u (run_id)
        cross join lateral (
            select from holdfast.tasks t
            where t.run_id = u.run_id and t.key = '' for update skip locked
        ) as t)
    then
        raise sqlstate 'HF004' using message = 'another transaction has the turn row of a run';
    end if;
end $$;

-- Return true if a call brings only outputs of elements of maps, none of which comes near its end
-- by it: such a call needs no turn. Locks nothing. Called by end_step_tasks.
create or replace function holdfast._ends_no_map(
    p_run_ids uuid[], p_keys text[], p_errors json[]
) returns boolean
language plpgsql stable
as $$
begin
    if exists (
        select from unnest(p_keys, p_errors) as u (key, error)
        where strpos(u.key, ':') = 0 or u.error is not null)
    then
        return false;
    end if;
    return coalesce(bool_and(s.remaining_tasks > 2 * c.elements), false)
    from (
        select u.run_id, split_part(u.key, ':', 1) as step_slug, count(*) as elements
        from unnest(p_run_ids, p_keys) as u (run_id, key)
        group by u.run_id, split_part(u.key, ':', 1)
    ) as c
    cross join lateral (
        select s.remaining_tasks from holdfast.step_states s
        where s.run_id = c.run_id and s.step_slug = c.step_slug limit 1
    ) as s;
end $$;

-- Record how attempts at steps ended, and advance their runs. The arrays are parallel: an output,
-- or an error, which is tried again as the step's options say and if p_retryable. An attempt is
-- known by its worker and its lease's number; with p_worker null, from SQL, by the number if one is
-- given, as long as it is open. Outcomes keep the order given: 'recorded', 'retried', or 'lost' if
-- it is no longer open, which changes nothing.
--
-- Up to p_room tasks that become ready, of these queues and handlers, are leased to the worker at
-- once and returned as rows after the first, which speaks of the call. They have what a claimed
-- task has, with the key and the headers that their run was started with. Elements of maps go in
-- calls of their own: these do not wait for each other. With p_tell, the schema's name, the call
-- sends its notices itself if it can. p_now is the moment of the ends, else that of the statement.
--
-- Refuses JSON that no reader could read (22023). Locks: turn rows, with those of parents, by
-- run_id; tasks by (run_id, key); states; then events and runs. Of elements alone: tasks, states,
-- then the turn, without waiting. Called by workers, complete_task, fail_task and _fail_lost_steps;
-- with '' as the worker, for runs that are steps, by _end_child_steps.
create or replace function holdfast.end_step_tasks(
    p_worker text, p_run_ids uuid[], p_keys text[], p_leases int[], p_outputs json[],
    p_errors json[] default null, p_retryable boolean[] default null, p_room int default 0,
    p_queues text[] default '{}', p_handlers text[] default '{}', p_lease float8 default 30,
    p_tell text default null, p_now timestamptz default null
) returns table (
    now bigint, outcomes text[], notices text[],
    run_id uuid, key text, queue text, handler text, attempts int, lease_no int, input text,
    run_key text, headers json
)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, holdfast.now());
    v_done record;
    v_failed record;
    v_large record;
    v_ends holdfast._step_end[];
    v_entries holdfast._flow_entry[];
    v_handed holdfast._handed_task[];
    v_children holdfast._flow_step[];
    v_is_recorded boolean := false;
    v_has_errors boolean := false;
    v_taker holdfast._taker := (p_worker, p_room, p_queues, p_handlers,
        v_now + p_lease * interval '1 second');
begin
    if p_errors is not null then
        v_has_errors := exists (
            select from unnest(p_errors) as e (error) where e.error is not null);
    end if;
    if p_worker is distinct from ''  -- what runs returned was stored already
        and (v_has_errors or cardinality(p_outputs) > 1 or not holdfast._is_plain(p_outputs[1]))
    then
        perform holdfast._check_ends(p_outputs, p_errors, null);
    end if;
    if not v_has_errors and p_worker is distinct from '' and strpos(p_keys[1], ':') = 0
        and p_run_ids[1] is distinct from p_run_ids[2]  -- two steps of one run begin no row
    then
        if cardinality(p_run_ids) = 1 then
            return query
            select * from holdfast._end_linear_step(v_now, p_worker, p_run_ids[1], p_keys[1],
                p_leases[1], p_outputs[1], v_taker, p_tell);
        else
            return query
            select * from holdfast._end_linear_steps(
                v_now, p_worker, p_run_ids, p_keys, p_leases, p_outputs, v_taker, p_tell);
        end if;
        if found then
            return;
        end if;
    end if;
    if holdfast._ends_no_map(p_run_ids, p_keys, p_errors) then
        begin
            perform holdfast._lock_tasks(p_run_ids, p_keys);
            v_done := holdfast._record_outputs(
                v_now, p_worker, p_run_ids, p_keys, p_leases, p_outputs, p_errors, false);
            if cardinality(v_done.ends) > 0 then
                perform holdfast._try_lock_flows(
                    array(select e.run_id from unnest(v_done.ends) as e));
            end if;
            v_is_recorded := true;
        exception when sqlstate 'HF004' then
            v_is_recorded := false;  -- undone: once more in the order of all others
        end;
    end if;
    if not v_is_recorded then
        perform holdfast._lock_flows(array(select distinct unnest(p_run_ids)));
        if v_has_errors then
            perform holdfast._lock_doomed(p_run_ids, p_keys, p_errors, p_retryable);
        end if;
        perform holdfast._lock_tasks(p_run_ids, p_keys);
        v_done := holdfast._record_outputs(
            v_now, p_worker, p_run_ids, p_keys, p_leases, p_outputs, p_errors, true);
    end if;
    v_failed := holdfast._fail_attempts(v_now, p_worker, p_run_ids, p_keys, p_leases,
        case when v_has_errors then p_errors end, p_retryable);
    v_entries := array(
        select (e.run_id, 'FlowStepCompleted', e.step_slug, null)::holdfast._flow_entry
        from unnest(v_done.ends) as e) || v_failed.entries;
    v_ends := v_done.ends || v_failed.ends;
    if cardinality(v_ends) > 0 and strpos(p_keys::text, ':') > 0 then
        v_large := holdfast._end_large_maps(v_now, v_ends, v_entries, v_failed.failures);
        v_ends := v_large.ends;
        v_entries := v_large.entries;
        v_failed.failures := v_large.failures;
        v_failed.notices := v_failed.notices || v_large.notices;
    end if;
    if cardinality(v_entries) > 0 then  -- every end, retry and failure has one
        select a.notices, a.handed into notices, v_handed
        from holdfast._advance_flows(
            v_now, v_ends, '{}', v_entries, v_failed.failures, v_taker) as a;
    end if;
    v_children := v_failed.children || v_done.children;
    if v_children is not null then  -- after the entries of this call
        notices := notices || holdfast._start_child_steps(v_now, v_children);
    end if;

    now := holdfast._micros(v_now);
    notices := holdfast._tell(p_tell, v_done.notices || v_failed.notices || notices);
    outcomes := array(
        select case
            when u.place in (select unnest(v_failed.retried)) then 'retried'
            when u.place in (select unnest(v_done.places || v_failed.places)) then 'recorded'
            else 'lost' end
        from generate_subscripts(p_run_ids, 1) as u (place) order by u.place);
    return next;
    if v_handed is not null then
        return query
        select null::bigint, null::text[], null::text[], h.run_id, h.key,
            coalesce(p.queue, r.queue), h.handler, 1, 1,
            coalesce(h.payload::text, i.input), holdfast._known_key(h.run_id, r.key), r.headers
        from unnest(v_handed) as h
        left join lateral holdfast._step_input(
            h.run_id, h.handler, h.key, h.payload is null) as i on true
        cross join lateral (
            select r.key, r.headers, r.queue from holdfast.runs r
            where r.run_id = h.run_id limit 1
        ) as r
        cross join lateral (
            select s.queue from holdfast.steps s
            where s.handler = h.handler and s.step_slug = split_part(h.key, ':', 1) limit 1
        ) as p;
    end if;
end $$;

-- Return true if a task's open attempt is the one that is meant: that of the worker with this
-- lease, or, for SQL workers, whose p_worker is null, the one with this lease, null for any. A run
-- that is a step, whose p_worker is '', has one run at a time. Called by _record_outputs,
-- _fail_attempts and those that end linear steps.
create or replace function holdfast._is_open_attempt(
    p_worker text, p_lease_no int, p_holder text, p_held_no int, p_claimed_idx int
) returns boolean
language sql immutable parallel safe
return case when p_worker = '' then true
    when p_worker is null
    then p_claimed_idx > 0 and p_held_no = coalesce(p_lease_no, p_held_no)
    else p_holder = p_worker and p_held_no = p_lease_no end;

-- Write the outputs of attempts that are open: results of elements, counters and states. Returns
-- the places of these attempts, from 1, the steps that are completed by it, and what begins by it,
-- as _count_down. Locks: expects the tasks locked; as _count_down. Called by end_step_tasks.
create or replace function holdfast._record_outputs(
    p_now timestamptz, p_worker text, p_run_ids uuid[], p_keys text[], p_leases int[],
    p_outputs json[], p_errors json[], p_has_turn boolean, out places int[],
    out ends holdfast._step_end[], out notices text[], out children holdfast._flow_step[]
)
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_elements int[];
    v_counted record;
begin
    with held as materialized (
        select t.*, u.output, u.place::int as place,
            row_number() over (partition by u.run_id, u.key order by u.place) as mention
        from unnest(p_run_ids, p_keys, p_leases, p_outputs, p_errors) with ordinality
            as u (run_id, key, lease_no, output, error, place)
        cross join lateral (
            select t.ctid as tid, t.run_id, t.key, t.handler, t.attempts, t.worker, t.started_at,
                split_part(t.key, ':', 1) as step_slug, strpos(t.key, ':') > 0 as is_element
            from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key
                and t.kind = case when p_worker = '' then 'child' else 'step' end
                and holdfast._is_open_attempt(
                    p_worker, u.lease_no, t.worker, t.lease_no, t.claimed_idx)
            limit 1
        ) as t
        where u.error is null
    ), first as materialized (
        select h.* from held h where h.mention = 1
    ), done as (
        delete from holdfast.tasks t where t.ctid = any (array(select f.tid from first f))
    ), elements as (
        insert into holdfast.step_tasks (run_id, step_slug, task_index, output, attempts, worker,
            started_at, completed_at)
        select f.run_id, f.step_slug, split_part(f.key, ':', 2)::int, coalesce(f.output, 'null'),
            f.attempts, f.worker, f.started_at, p_now
        from first f where f.is_element
    ), singles as (  -- those with several dependencies have a state already
        insert into holdfast.step_states (run_id, step_slug, status, initial_tasks,
            remaining_tasks, output, attempts, worker, started_at, ended_at)
        select f.run_id, f.step_slug, 'completed', 1, 0, coalesce(f.output, 'null'), f.attempts,
            f.worker, least(f.started_at, p_now), p_now
        from first f where not f.is_element
        order by f.run_id, f.step_slug
        on conflict (run_id, step_slug) do update
        set status = 'completed', initial_tasks = 1, remaining_tasks = 0, output = excluded.output,
            attempts = excluded.attempts, worker = excluded.worker,
            started_at = excluded.started_at, ended_at = p_now
    )
    select array_agg(f.place),
        coalesce(array_agg((f.run_id, f.handler, f.step_slug, 'completed')::holdfast._step_end
            order by f.place) filter (where not f.is_element), '{}'),
        array_agg(f.place) filter (where f.is_element)
    into places, ends, v_elements
    from first f;
    if v_elements is not null then
        v_counted := holdfast._count_down(p_now,
            array(select p_run_ids[e.place] from unnest(v_elements) as e (place)),
            array(select p_keys[e.place] from unnest(v_elements) as e (place)), p_has_turn, false);
        ends := ends || v_counted.ends;
        notices := v_counted.notices;
        children := v_counted.children;
    end if;
end $$;

-- Count elements of maps down that have ended; with p_failed they have failed. Returns the maps
-- that have completed. Of a map with a concurrency as many elements begin: notices and children are
-- those of _begin_maps. The counters come last in a call, because others wait for them; each row is
-- changed by its key: by a ctid that was found before, a count at the same moment would be lost.
-- Locks: states of steps, by (run_id, step_slug), and tasks of elements that begin, as
-- _begin_elements. Called by _record_outputs and _fail_attempts.
create or replace function holdfast._count_down(
    p_now timestamptz, p_run_ids uuid[], p_keys text[], p_has_turn boolean, p_failed boolean,
    out ends holdfast._step_end[], out notices text[], out children holdfast._flow_step[]
)
language plpgsql
as $$
declare
    v_map record;
    v_left int;
    v_next int;
    v_begun record;
begin
    ends := '{}';
    for v_map in
        select u.run_id, split_part(u.key, ':', 1) as step_slug, count(*)::int as elements
        from unnest(p_run_ids, p_keys) as u (run_id, key)
        group by 1, 2 order by 1, 2
    loop
        update holdfast.step_states s
        set remaining_tasks = s.remaining_tasks - v_map.elements,
            status = case when s.remaining_tasks = v_map.elements
                then 'completed' else s.status end,
            ended_at = case when s.remaining_tasks = v_map.elements then p_now end,
            failed_tasks = case when p_failed
                then coalesce(s.failed_tasks, 0) + v_map.elements else s.failed_tasks end
        where s.run_id = v_map.run_id and s.step_slug = v_map.step_slug and s.status = 'started'
        returning s.remaining_tasks, s.next_task into v_left, v_next;
        if found and v_left = 0 then
            ends := ends || (
                select (r.run_id, r.name || '@' || r.version, v_map.step_slug, 'completed')
                    ::holdfast._step_end
                from holdfast.runs r where r.run_id = v_map.run_id);
        elsif found and v_next is not null then
            v_begun := holdfast._begin_elements(
                p_now, v_map.run_id, v_map.step_slug, v_map.elements, p_has_turn);
            notices := notices || v_begun.notices;
            children := children || v_begun.children;
        end if;
    end loop;
end $$;
