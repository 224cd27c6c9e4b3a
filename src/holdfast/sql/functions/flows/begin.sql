-- Begin steps: their tasks, and the states of maps.

-- Return how many tasks of steps may be leased to the taker at once: none while something is
-- paused, or if a limit concerns what it serves. Claims look at pauses and limits, and this does
-- not. Called by _begin_singles, _begin_maps and those that end linear steps.
create or replace function holdfast._room(p_taker holdfast._taker) returns int
language sql stable
as $$
    select case when exists (select from holdfast.pauses) then 0
        when exists (
            select from holdfast.limits l
            where l.scope = 'queue' and l.name = any (p_taker.queues) or exists (
                select from unnest(p_taker.handlers) as h (handler)
                where holdfast._concerns(l.scope, l.name, null, h.handler))) then 0
        else greatest(coalesce((p_taker).room, 0), 0) end
$$;

-- Begin single steps: a task each. Those that are runs are `children`, whose runs are to be
-- started. Returns (topic, payload) notices for those that are not leased to the taker.
-- Locks: nothing that others wait for. Called by _advance_flows.
create or replace function holdfast._begin_singles(
    p_now timestamptz, p_steps holdfast._flow_step[], p_taker holdfast._taker,
    out notices text[], out handed holdfast._handed_task[], out children holdfast._flow_step[]
)
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_room int := case when p_taker.room > 0 then holdfast._room(p_taker) else 0 end;
begin
    with ready as materialized (
        select u.run_id, u.handler, u.step_slug, coalesce(s.queue, t.queue) as queue, t.priority,
            t.paused, coalesce(s.opt_start_delay, 0) as start_delay, s.runs is not null as is_child,
            s.runs is null and coalesce(s.opt_start_delay, 0) = 0 and not t.paused
                and coalesce(s.queue, t.queue) = any (p_taker.queues)
                and u.handler = any (p_taker.handlers) and u.place <= v_room as is_handed
        from unnest(p_steps) with ordinality as u (run_id, handler, step_slug, place)
        cross join lateral (
            select s.queue, s.opt_start_delay, s.runs from holdfast.steps s
            where s.handler = u.handler and s.step_slug = u.step_slug limit 1
        ) as s
        cross join lateral (
            select t.queue, t.priority, t.paused from holdfast.tasks t
            where t.run_id = u.run_id and t.key = '' limit 1
        ) as t
    ), queued as (
        insert into holdfast.tasks (run_id, key, kind, queue, handler, priority, visible_at,
            attempts, lease_no, claimed_idx, worker, started_at, paused)
        select r.run_id, r.step_slug, case when r.is_child then 'child' else 'step' end, r.queue,
            r.handler, r.priority, case when r.is_handed then p_taker.until
                when r.is_child then 'infinity'
                else p_now + r.start_delay * interval '1 second' end,
            b.begun, b.begun, b.begun,
            case when r.is_handed then p_taker.worker end,
            case when b.begun = 1 and not r.paused then p_now end, r.paused
        from ready r
        cross join lateral (select (r.is_handed or r.is_child)::int as begun) as b
    )
    select array_agg(distinct array[
                case r.start_delay when 0 then 'starts' else 'work' end, r.queue])
            filter (where not r.is_handed and not r.is_child),
        array_agg((r.run_id, r.step_slug, r.handler, null)::holdfast._handed_task)
            filter (where r.is_handed),
        array_agg((r.run_id, r.handler, r.step_slug)::holdfast._flow_step)
            filter (where r.is_child)
    into notices, handed, children
    from ready r;
end $$;

-- Begin maps that have elements: their states, and a task for each element, whose payload is the
-- element. The elements are those of the run's input, of the output of the dependency, or, where
-- that is a map, its results. In a run that retries another, elements that have their results get
-- no task. Of a map with a concurrency only so many tasks are due; the others begin as these end.
-- Returns notices as _begin_singles, and the entries for the logs.
-- Locks: nothing that others wait for. Called by _advance_flows.
create or replace function holdfast._begin_maps(
    p_now timestamptz, p_maps holdfast._begun_map[], p_taker holdfast._taker,
    out notices text[], out handed holdfast._handed_task[], out entries holdfast._flow_entry[],
    out children holdfast._flow_step[]
)
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_room int := case when p_taker.room > 0 then holdfast._room(p_taker) else 0 end;
begin
    with ready as materialized (
        select u.run_id, u.handler, u.step_slug, u.elements as count, u.place, d.dep_slug,
            coalesce(s.queue, t.queue) as queue, t.priority, t.paused,
            coalesce(s.opt_start_delay, 0) as start_delay, coalesce(x.results, 0) as results,
            s.runs is not null as is_child, s.opt_concurrency,
            case when d.dep_slug is null then
                (select r.input from holdfast.runs r where r.run_id = u.run_id)
            else
                (select o.output from holdfast.step_states o
                where o.run_id = u.run_id and o.step_slug = d.dep_slug)
            end as elements
        from unnest(p_maps) with ordinality as u (run_id, handler, step_slug, elements, place)
        cross join lateral (
            select s.queue, s.opt_start_delay, s.runs, s.opt_concurrency from holdfast.steps s
            where s.handler = u.handler and s.step_slug = u.step_slug limit 1
        ) as s
        left join lateral (
            select d.dep_slug from holdfast.deps d
            where d.handler = u.handler and d.step_slug = u.step_slug limit 1
        ) as d on true
        left join lateral (
            select count(*)::int as results from holdfast.step_tasks x
            where x.run_id = u.run_id and x.step_slug = u.step_slug
        ) as x on true
        cross join lateral (
            select t.queue, t.priority, t.paused from holdfast.tasks t
            where t.run_id = u.run_id and t.key = '' limit 1
        ) as t
    ), begun as (
        insert into holdfast.step_states (
            run_id, step_slug, status, deps_done, initial_tasks, remaining_tasks, started_at)
        select r.run_id, r.step_slug, 'started', (r.dep_slug is not null)::int, r.count,
            r.count - r.results, p_now
        from ready r
    ), elements as (
        select r.*, (e.place - 1)::int as index, e.value
        from ready r
        cross join lateral json_array_elements(r.elements) with ordinality as e (value, place)
        where r.elements is not null
        union all
        select r.*, x.task_index, x.output
        from ready r
        cross join lateral (
            select x.task_index, x.output from holdfast.step_tasks x
            where x.run_id = r.run_id and x.step_slug = r.dep_slug order by x.task_index
        ) as x
        where r.elements is null
    ), judged as (
        select e.*, not e.is_child and e.start_delay = 0 and not e.paused
            and e.queue = any (p_taker.queues)
            and e.handler = any (p_taker.handlers)
            and row_number() over (order by e.place, e.index) <= v_room
            and (e.opt_concurrency is null
                or row_number() over (partition by e.place order by e.index) <= e.opt_concurrency)
                as is_handed,
            row_number() over (partition by e.place order by e.index) > e.opt_concurrency
                as is_waiting
        from elements e
        where e.results = 0 or (
            select x.task_index from holdfast.step_tasks x
            where x.run_id = e.run_id and x.step_slug = e.step_slug and x.task_index = e.index
        ) is null
    ), queued as (
        insert into holdfast.tasks (run_id, key, kind, queue, handler, priority, visible_at,
            attempts, lease_no, claimed_idx, worker, started_at, paused, payload)
        select j.run_id, j.step_slug || ':' || j.index,
            case when j.is_child then 'child' else 'step' end, j.queue, j.handler, j.priority,
            case when j.is_handed then p_taker.until
                when j.is_child or j.is_waiting then 'infinity'
                else p_now + j.start_delay * interval '1 second' end,
            b.begun, b.begun, b.begun,
            case when j.is_handed then p_taker.worker end, case when b.begun = 1 then p_now end,
            j.paused, j.value
        from judged j
        cross join lateral (select (j.is_handed or j.is_child)::int as begun) as b
        order by j.place, j.index
        returning run_id, key, kind, handler, queue, worker, payload, visible_at
    )
    select array_agg(distinct array[case when q.visible_at <= p_now
                then holdfast._hint_topic('starts', (select count(*) from queued))
                else 'work' end, q.queue])
            filter (where q.worker is null and q.kind = 'step' and q.visible_at < 'infinity'),
        array_agg((q.run_id, q.key, q.handler, q.payload)::holdfast._handed_task)
            filter (where q.worker is not null),
        (select array_agg((r.run_id, 'FlowStepStarted', r.step_slug,
            json_build_object('tasks', r.count - r.results))::holdfast._flow_entry order by r.place)
        from ready r),
        array_agg((q.run_id, q.handler, q.key)::holdfast._flow_step) filter (where q.kind = 'child')
    into notices, handed, entries, children
    from queued q;
    children := holdfast._limit_elements(p_maps, children);
end $$;

-- Note which elements of maps with a concurrency have not begun. Returns those of p_children, tasks
-- that are runs, that are to begin. Locks: expects the maps to have begun in this transaction.
-- Called by _begin_maps.
create or replace function holdfast._limit_elements(
    p_maps holdfast._begun_map[], p_children holdfast._flow_step[]
) returns holdfast._flow_step[]
language plpgsql
as $$
declare
    v_map record;
    v_next int;
    v_children holdfast._flow_step[] := p_children;
begin
    for v_map in
        select m.run_id, m.step_slug, s.opt_concurrency
        from unnest(p_maps) as m
        cross join lateral (
            select s.opt_concurrency from holdfast.steps s
            where s.handler = m.handler and s.step_slug = m.step_slug limit 1
        ) as s
        where s.opt_concurrency is not null
    loop
        select max(e.index) + 1 into v_next
        from (
            select split_part(t.key, ':', 2)::int as index from holdfast.tasks t
            where t.run_id = v_map.run_id and t.kind in ('step', 'child')
                and split_part(t.key, ':', 1) = v_map.step_slug
            order by 1 limit v_map.opt_concurrency
        ) as e;
        update holdfast.step_states s set next_task = v_next
        where s.run_id = v_map.run_id and s.step_slug = v_map.step_slug;
        v_children := array(
            select c from unnest(v_children) as c
            where c.run_id <> v_map.run_id or split_part(c.step_slug, ':', 1) <> v_map.step_slug
                or split_part(c.step_slug, ':', 2)::int < v_next);
    end loop;
    return v_children;
end $$;

-- Begin up to p_count more elements of a map with a concurrency, in their order, if there are so
-- many. Returns notices and children as _begin_maps. Raises HF004 if another transaction has the
-- task of one, unless p_has_turn.
-- Locks: expects the state of the map locked; tasks of elements that have not begun, which nobody
-- else locks without the turn row or this state. Called by _count_down.
create or replace function holdfast._begin_elements(
    p_now timestamptz, p_run_id uuid, p_step text, p_count int, p_has_turn boolean,
    out notices text[], out children holdfast._flow_step[]
)
language plpgsql
as $$
declare
    v_map record;
    v_task record;
    v_next int;
    v_left int := p_count;
begin
    select s.next_task, s.initial_tasks, s.started_at into v_map from holdfast.step_states s
    where s.run_id = p_run_id and s.step_slug = p_step;
    v_next := v_map.next_task;
    while v_left > 0 and v_next < v_map.initial_tasks loop
        if p_has_turn then
            select t.key, t.kind, t.queue, t.handler into v_task from holdfast.tasks t
            where t.run_id = p_run_id and t.key = p_step || ':' || v_next for update;
        else
            select t.key, t.kind, t.queue, t.handler into v_task from holdfast.tasks t
            where t.run_id = p_run_id and t.key = p_step || ':' || v_next for update skip locked;
            if not found and exists (
                select from holdfast.tasks t
                where t.run_id = p_run_id and t.key = p_step || ':' || v_next)
            then
                raise sqlstate 'HF004' using message = 'another transaction has an element';
            end if;
        end if;
        if v_task.key is not null and v_task.kind = 'step' then
            update holdfast.tasks t
            set visible_at = greatest(p_now, v_map.started_at + (
                select coalesce(s.opt_start_delay, 0) * interval '1 second' from holdfast.steps s
                where s.handler = v_task.handler and s.step_slug = p_step))
            where t.run_id = p_run_id and t.key = v_task.key;
            notices := notices || array[array['starts', v_task.queue]];
        elsif v_task.key is not null then
            children := children || (p_run_id, v_task.handler, v_task.key)::holdfast._flow_step;
        end if;
        v_left := v_left - (v_task.key is not null)::int;
        v_next := v_next + 1;
    end loop;
    update holdfast.step_states s set next_task = v_next
    where s.run_id = p_run_id and s.step_slug = p_step;
end $$;
