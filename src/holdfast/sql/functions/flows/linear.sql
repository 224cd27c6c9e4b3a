-- Ends of steps that one step follows, or the run's end: most flows are rows of steps.

-- Record outputs as end_step_tasks does, and return its rows, if each of the steps is followed by
-- one step that depends on nothing else. One statement locks and one writes, where end_step_tasks
-- has a statement for each of its rules. So each run may be named only once, has no parent, and has
-- no steps that are runs; what follows is the end, or a single step without a condition, a delay or
-- an output that a fork was given. If one of the steps is different, nothing is written, and no
-- rows are returned.
-- Locks: turn rows by run_id; tasks by run_id; then runs, states and events, which nobody else
-- changes while the turn is locked. If it returns no rows, none or the first two, in the order of
-- end_step_tasks. Called by end_step_tasks.
create or replace function holdfast._end_linear_steps(
    p_now timestamptz, p_worker text, p_run_ids uuid[], p_keys text[], p_leases int[],
    p_outputs json[], p_taker holdfast._taker, p_tell text
) returns table (
    now bigint, outcomes text[], notices text[],
    run_id uuid, key text, queue text, handler text, attempts int, lease_no int, input text,
    run_key text, headers json
)
language plpgsql
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_room int := case when p_taker.room > 0 then holdfast._room(p_taker) else 0 end;
    v_found record;
begin
    with asked as materialized (
        select u.run_id, u.key, u.lease_no, u.output, u.place::int as place, t.handler,
            t.parent_run_id
        from unnest(p_run_ids, p_keys, p_leases, p_outputs) with ordinality
            as u (run_id, key, lease_no, output, place)
        cross join lateral (
            select t.handler, t.parent_run_id from holdfast.tasks t
            where t.run_id = u.run_id and t.key = '' limit 1
        ) as t
    ), ending as (
        select distinct a.handler, a.key from asked a
    ), followed as materialized (
        select e.handler, e.key, s.*
        from ending e
        left join lateral (
            select d.step_slug, s.queue, s.wants_run
            from (
                select min(d.step_slug) as step_slug, count(*) as dependents from holdfast.deps d
                where d.handler = e.handler and d.dep_slug = e.key
            ) as d
            cross join lateral (
                select * from holdfast.steps s
                where s.handler = e.handler and s.step_slug = d.step_slug limit 1
            ) as s
            where d.dependents = 1 and s.deps_count = 1 and s.step_type in ('single', 'end')
                and s.runs is null and coalesce(s.opt_start_delay, 0) = 0
                and num_nonnulls(s.required_input_pattern, s.forbidden_input_pattern) = 0
                and s.trigger_rule = 'none_failed'
        ) as s on true
    ), verdict as materialized (
        select count(distinct a.run_id) = cardinality(p_run_ids)
            and count(a.parent_run_id) = 0
            and not exists (select from followed f where f.step_slug is null)
            and not exists (
                select from followed f
                cross join lateral (
                    select from holdfast.steps s
                    where s.handler = f.handler and s.runs is not null limit 1
                ) as s)
            as is_linear
        from asked a
    ), turns as materialized (
        select a.*, t.queue, t.priority, t.paused
        from verdict v
        cross join (select a.* from asked a order by a.run_id offset 0) as a
        cross join lateral (
            select t.queue, t.priority, t.paused from holdfast.tasks t
            where v.is_linear and t.run_id = a.run_id and t.key = '' for update
        ) as t
    ), held as materialized (  -- all turns come first: they are sorted
        select t.*, k.*
        from (
            select t.*, f.step_slug as next_slug, f.wants_run,
                coalesce(f.queue, t.queue) as next_queue
            from turns t
            join followed f on f.handler = t.handler and f.key = t.key
            order by t.run_id offset 0
        ) as t
        cross join lateral (
            select k.ctid as tid, k.attempts, k.worker, k.started_at from holdfast.tasks k
            where k.run_id = t.run_id and k.key = t.key and k.kind = 'step'
                and holdfast._is_open_attempt(
                    p_worker, t.lease_no, k.worker, k.lease_no, k.claimed_idx)
            for update
        ) as k
    ), judged as (
        select h.*, h.next_slug <> '' and not h.paused
            and h.next_queue = any (p_taker.queues) and h.handler = any (p_taker.handlers)
            and row_number() over () <= v_room as is_handed
        from held h
    )
    select v.is_linear, j.*
    into v_found
    from verdict v
    cross join lateral (
        select array_agg((j.place, j.tid, j.run_id, j.handler, j.key, coalesce(j.output, 'null'),
                j.attempts, j.worker, j.started_at, j.next_slug, j.wants_run, j.next_queue,
                j.priority, j.paused, j.is_handed)::holdfast._linear_end) as ends,
            array_agg(j.place) as places,
            array_agg(distinct array['starts', j.next_queue])
                filter (where j.next_slug <> '' and not j.is_handed) as notices,
            array_agg(j.run_id) filter (where j.next_slug = '') as done,
            array_agg('{"' || j.key || '":' || coalesce(j.output, 'null') || '}')
                filter (where j.next_slug = '') as outputs,
            coalesce(bool_or(t.run_id is not null), false) as has_begun
        from judged j
        left join lateral (  -- a fork was given its output
            select t.run_id from holdfast.step_states t
            where j.next_slug <> '' and t.run_id = j.run_id and t.step_slug = j.next_slug limit 1
        ) as t on true
    ) as j;
    if not v_found.is_linear or v_found.has_begun then
        return;
    end if;

    now := holdfast._micros(p_now);
    notices := v_found.notices;
    if v_found.done is not null then
        notices := notices || (
            select e.notices from holdfast._end_runs(p_now, v_found.done,
                array_fill('completed'::text, array[cardinality(v_found.done)]),
                v_found.outputs::json[]) as e);
        perform holdfast._count_ended(p_now, v_found.done, 'completed');
        perform holdfast._keep_ends(p_now, v_found.done);
    end if;
    notices := holdfast._tell(p_tell, notices);
    outcomes := array(
        select case when u.place = any (v_found.places) then 'recorded' else 'lost' end
        from generate_subscripts(p_run_ids, 1) as u (place) order by u.place);
    return next;
    if v_found.ends is null then
        return;
    end if;

    return query
    with ends as materialized (
        select * from unnest(v_found.ends)
    ), done as (  -- those of runs that have ended are gone
        delete from holdfast.tasks t
        where t.ctid = any (array(select e.tid from ends e where e.next_slug <> ''))
    ), states as (
        insert into holdfast.step_states (run_id, step_slug, status, initial_tasks,
            remaining_tasks, output, attempts, worker, started_at, ended_at)
        select e.run_id, e.step_slug, 'completed', 1, 0, e.output, e.attempts, e.worker,
            e.started_at, p_now
        from ends e
        on conflict (run_id, step_slug) do update
        set status = 'completed', initial_tasks = 1, remaining_tasks = 0, output = excluded.output,
            attempts = excluded.attempts, worker = excluded.worker,
            started_at = excluded.started_at, ended_at = p_now
    ), logged as (
        insert into holdfast.events (run_id, idx, event_type, key, at)
        select e.run_id, l.idx + n.place, n.event_type,
            case when n.place = 1 then e.step_slug end, p_now
        from ends e
        cross join lateral (
            select l.idx from holdfast.events l where l.run_id = e.run_id
            order by l.idx desc limit 1
        ) as l
        cross join lateral (
            select 1, 'FlowStepCompleted' union all
            select 2, 'WorkflowCompleted' where e.next_slug = ''
        ) as n (place, event_type)
    ), queued as (
        insert into holdfast.tasks (run_id, key, kind, queue, handler, priority, visible_at,
            attempts, lease_no, claimed_idx, worker, started_at, paused)
        select e.run_id, e.next_slug, 'step', e.queue, e.handler, e.priority,
            case when e.is_handed then p_taker.until else p_now end, b.begun, b.begun, b.begun,
            case when e.is_handed then p_taker.worker end,
            case when e.is_handed then p_now end, e.paused
        from ends e
        cross join lateral (select e.is_handed::int as begun) as b
        where e.next_slug <> ''
    )
    select null::bigint, null::text[], null::text[], e.run_id, e.next_slug, e.queue, e.handler,
        1, 1, '{' || case when e.wants_run then '"run":' || r.input || ',' else '' end
            || '"' || e.step_slug || '":' || e.output || '}',
        holdfast._known_key(e.run_id, r.key), r.headers
    from ends e
    cross join lateral (
        select r.input, r.key, r.headers from holdfast.runs r where r.run_id = e.run_id limit 1
    ) as r
    where e.is_handed;
end $$;
