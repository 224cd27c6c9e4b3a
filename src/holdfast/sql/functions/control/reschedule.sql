-- Reschedule runs: another queue, another start, another deadline.

-- Change the queue, the start and the deadline of runs that have not ended, and append
-- WorkflowRescheduled. Moments are microseconds since 1970, p_delay and p_timeout are seconds.
-- p_queue is the queue of their turns from now on; a run that a worker holds continues there until
-- it suspends. p_start_at or p_delay is when a run becomes due that no worker has begun; its
-- deadline moves with it. The deadline is p_deadline_at, or p_timeout after the moment from which
-- the run may run, or none with p_no_deadline.
--
-- Outcomes are those of _outcomes, and 'begun', 'ruled' and 'flow' for runs that cannot be changed
-- so, of which nothing is changed. A run that has all of it already is a duplicate.
-- Refuses what pause_runs does, and values that are not allowed, none at all, or two for one thing
-- (22023). Locks: turn rows, then events, then runs, by run_id; then as _move_steps.
-- Called by clients.
create or replace function holdfast.reschedule_runs(
    p_run_ids uuid[], p_queue text default null, p_start_at bigint default null,
    p_delay float8 default null, p_deadline_at bigint default null,
    p_timeout float8 default null, p_no_deadline boolean default false,
    p_reason text default null, p_by text default null, out outcomes text[], out notices text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_start_at timestamptz := coalesce(
        holdfast._moment(p_start_at), v_now + p_delay * interval '1 second');
    v_locked uuid[];
    v record;
begin
    perform holdfast._check_change(p_run_ids, p_reason, p_by);
    perform holdfast._check_reschedule(
        p_queue, p_start_at, p_delay, p_deadline_at, p_timeout, p_no_deadline);
    v_locked := holdfast._lock_turns(p_run_ids);
    select array_agg(m.run_id) filter (where m.is_changed) as run_ids,
        array_agg(m.details) filter (where m.is_changed) as details,
        array_agg(m.from_queue) filter (where m.is_changed) as from_queues,
        array_agg(m.due_at) filter (where m.is_changed) as due_ats,
        array_agg(m.deadline_at) filter (where m.is_changed) as deadline_ats,
        array_agg(m.run_id) filter (where m.refused is not null) as refused_ids,
        array_agg(m.refused) filter (where m.refused is not null) as refusals
    into v
    from holdfast._reschedules(v_now, v_locked, p_queue, v_start_at,
        holdfast._moment(p_deadline_at), p_timeout, coalesce(p_no_deadline, false),
        p_reason, p_by) as m;
    if v.run_ids is not null then
        perform holdfast._append_each(v_now, v.run_ids, 'WorkflowRescheduled', v.details);
        if p_queue is not null then
            notices := holdfast._place_notices(array(
                select u.run_id from unnest(v.run_ids, v.from_queues) as u (run_id, queue)
                where u.queue <> p_queue));
            perform holdfast._move_places(v.run_ids, v.from_queues, p_queue);
        end if;
        notices := holdfast._move_turns(v.run_ids, v.due_ats, p_queue) || notices;
        perform holdfast._lock_runs(v.run_ids);
        update holdfast.runs r
        set queue = coalesce(p_queue, r.queue), deadline_at = u.deadline_at,
            due_at = case when v_start_at is null or greatest(r.due_at, u.due_at) <= v_now
                then r.due_at else greatest(u.due_at, v_now) end
        from unnest(v.run_ids, v.due_ats, v.deadline_ats) as u (run_id, due_at, deadline_at)
        cross join lateral (
            select r.ctid from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as f
        where r.ctid = f.ctid;
        if v_start_at is not null then
            perform holdfast._move_steps(v.run_ids);
        end if;
    end if;
    outcomes := array(
        select coalesce(f.refused, o.outcome)
        from unnest(p_run_ids, holdfast._outcomes(p_run_ids, v_locked, v.run_ids))
            with ordinality as o (run_id, outcome, place)
        left join unnest(v.refused_ids, v.refusals) as f (run_id, refused) on f.run_id = o.run_id
        order by o.place);
end $$;

-- Refuse values of a change that are not allowed (22023), none, and two for one thing. Called by
-- reschedule_runs.
create or replace function holdfast._check_reschedule(
    p_queue text, p_start_at bigint, p_delay float8, p_deadline_at bigint, p_timeout float8,
    p_no_deadline boolean
) returns void
language plpgsql immutable
as $$
declare
    v_deadlines int := num_nonnulls(p_deadline_at, p_timeout, nullif(p_no_deadline, false));
begin
    if p_queue is not null then
        perform holdfast._check_name('a queue', p_queue);
    end if;
    perform holdfast._check_moment('a start', p_start_at);
    perform holdfast._check_seconds('a delay', p_delay);
    perform holdfast._check_moment('a deadline', p_deadline_at);
    perform holdfast._check_seconds('a timeout', p_timeout);
    if num_nonnulls(p_queue, p_start_at, p_delay) + v_deadlines = 0 then
        raise invalid_parameter_value using message =
            'a change needs a queue, a start, a delay, a deadline or a timeout';
    elsif num_nonnulls(p_start_at, p_delay) > 1 or v_deadlines > 1 then
        raise invalid_parameter_value using message =
            'a change has either a start or a delay, and one of a deadline, a timeout and none';
    end if;
end $$;

-- Return what becomes of each of these runs that has not ended, once. `refused` says why it cannot
-- be changed so: the start of one that has begun; anything but the queue of one that waits for a
-- rule of its workflow; the queue or the start of a flow, whose steps have their own. A start in
-- the past does not change that of a run that is due, nor its deadline; nor does any start of the
-- next attempt of a run, whose time counts from the first.
-- Locks: expects the turn rows locked. Called by reschedule_runs.
create or replace function holdfast._reschedules(
    p_now timestamptz, p_run_ids uuid[], p_queue text, p_start_at timestamptz,
    p_deadline_at timestamptz, p_timeout float8, p_no_deadline boolean, p_reason text, p_by text
) returns table (
    run_id uuid, from_queue text, due_at timestamptz, deadline_at timestamptz, refused text,
    is_changed boolean, details json
)
language plpgsql stable
as $$
begin
    return query
    select c.run_id, c.from_queue, c.due_at, c.deadline_at, c.refused,
        c.refused is null and (c.moves or c.starts or c.deadline_at is distinct from c.ends_at),
        ('{' || concat_ws(',',
            '"queue":' || case when c.moves then to_json(p_queue)::text end,
            '"start_at":' || case when c.starts then holdfast._micros(c.due_at) end,
            case when c.deadline_at is distinct from c.ends_at
                then '"deadline_at":'
                    || coalesce(holdfast._micros(c.deadline_at)::text, 'null') end,
            '"reason":' || to_json(p_reason)::text, '"by":' || to_json(p_by)::text) || '}')::json
    from (
        select f.*, f.from_queue <> p_queue as moves, f.due_at <> f.was_due_at as starts,
            case when p_no_deadline then null
                when p_deadline_at is not null then p_deadline_at
                when p_timeout is not null
                    then greatest(p_now, case when f.has_begun then p_now
                        else coalesce(p_start_at, f.could_begin_at) end)
                        + p_timeout * interval '1 second'
                when f.due_at <> f.was_due_at and not f.is_attempt
                    then f.ends_at + (greatest(p_now, f.due_at) - f.could_begin_at)
                else f.ends_at end as deadline_at,
            case when f.kind = 'flow' and (p_queue is not null or p_start_at is not null)
                    then 'flow'
                when p_start_at is not null and f.has_begun then 'begun'
                when f.is_ruled and (p_start_at is not null or p_deadline_at is not null
                    or p_timeout is not null or p_no_deadline) then 'ruled' end as refused
        from (
            select r.run_id, r.kind, t.queue as from_queue, t.due_at as was_due_at,
                r.deadline_at as ends_at, t.lease_no > 0 as has_begun, t.is_ruled,
                greatest(r.created_at, r.due_at) as could_begin_at,
                r.clock_at is not null as is_attempt,
                case when p_start_at is null or greatest(p_start_at, t.due_at) <= p_now
                    then t.due_at else p_start_at end as due_at
            from (select distinct u.run_id from unnest(p_run_ids) as u (run_id)) as u
            cross join lateral (
                select t.queue, t.lease_no, coalesce(t.limited_at, t.visible_at) as due_at,
                    coalesce(t.awaiting && '{:singleton,:debounce,:throttle}', false) as is_ruled
                from holdfast.tasks t where t.run_id = u.run_id and t.key = '' limit 1
            ) as t
            cross join lateral (
                select * from holdfast.runs r where r.run_id = u.run_id limit 1
            ) as r
        ) as f
    ) as c;
end $$;

-- Let the turns of runs wait in p_queue, or in theirs for a null, until p_due_ats. Those that wait
-- for a limit are looked at by the next claim again. Returns (topic, payload) notices.
-- Locks: expects the turn rows locked. Called by reschedule_runs.
create or replace function holdfast._move_turns(
    p_run_ids uuid[], p_due_ats timestamptz[], p_queue text
) returns text[]
language plpgsql
as $$
declare
    v_notices text[];
begin
    with moved as (
        update holdfast.tasks t
        set queue = coalesce(p_queue, t.queue), visible_at = u.due_at, limited_at = null,
            limit_keys = null
        from unnest(p_run_ids, p_due_ats) as u (run_id, due_at)
        cross join lateral (
            select t.ctid from holdfast.tasks t where t.run_id = u.run_id and t.key = '' limit 1
        ) as f
        where t.ctid = f.ctid
            and (t.queue <> p_queue or u.due_at <> coalesce(t.limited_at, t.visible_at))
        returning t.queue, t.worker, t.visible_at
    )
    select array_agg(distinct array['work', m.queue]) into v_notices
    from moved m where m.worker is null and m.visible_at < 'infinity';
    return v_notices;
end $$;

-- Let steps that are these runs begin when these do. Locks: expects the turn rows locked; tasks of
-- steps, skipping locked ones: nobody may wait for a flow who has turns of its steps. Called by
-- reschedule_runs.
create or replace function holdfast._move_steps(p_run_ids uuid[]) returns void
language plpgsql
as $$
declare
    v_steps record;
begin
    select array_agg(r.parent_run_id) as run_ids, array_agg(r.parent_key) as keys,
        array_agg(r.due_at) as due_ats
    into v_steps
    from unnest(p_run_ids) as u (run_id)
    cross join lateral (
        select r.parent_run_id, r.parent_key, r.due_at from holdfast.runs r
        where r.run_id = u.run_id and r.due_at is not null limit 1
    ) as r
    cross join lateral (
        select from holdfast.tasks t
        where t.run_id = r.parent_run_id and t.key = r.parent_key and t.kind = 'child'
            and t.attempts = 1 and strpos(t.key, ':') = 0
        for update skip locked
    ) as t;
    update holdfast.tasks t
    set started_at = u.due_at
    from unnest(v_steps.run_ids, v_steps.keys, v_steps.due_ats) as u (run_id, key, due_at)
    cross join lateral (
        select t.ctid from holdfast.tasks t where t.run_id = u.run_id and t.key = u.key limit 1
    ) as f
    where t.ctid = f.ctid;
end $$;

-- Let runs that leave queues hold no place of limits there; those that held one count for the
-- limits of p_queue, also if these have no place left. Limits are not locked: see _pass_places.
-- Locks: expects the turn rows locked; rows of holders. Called by reschedule_runs.
create or replace function holdfast._move_places(
    p_run_ids uuid[], p_from_queues text[], p_queue text
) returns void
language plpgsql
as $$
begin
    delete from holdfast.limit_holders h
    using unnest(p_run_ids, p_from_queues) as u (run_id, queue)
    join holdfast.limits l on l.scope = 'queue' and l.kind = 'concurrency'
        and l.name = u.queue and u.queue <> p_queue
    where h.limit_id = l.limit_id and h.run_id = u.run_id and h.key = '';
    insert into holdfast.limit_holders (limit_id, slot, run_id, key)
    select l.limit_id, holdfast._slot_of(r.input, l.key), u.run_id, ''
    from unnest(p_run_ids, p_from_queues) as u (run_id, queue)
    cross join lateral (
        select t.worker, t.lease_no from holdfast.tasks t
        where t.run_id = u.run_id and t.key = '' limit 1
    ) as t
    cross join lateral (
        select r.input from holdfast.runs r where r.run_id = u.run_id limit 1
    ) as r
    join holdfast.limits l on l.scope = 'queue' and l.kind = 'concurrency' and not l.removed
        and l.name = p_queue and u.queue <> p_queue
        and (t.worker is not null or l.holds = 'run' and t.lease_no > 0)
    on conflict do nothing;
end $$;
