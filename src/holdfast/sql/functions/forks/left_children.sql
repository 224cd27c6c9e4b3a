-- Children that a run has let go: its retry takes them over, so that none is started twice.

-- Return the calls of a run that started a child of whose end its log does not tell, and which it
-- has not asked to stop, without those that a retry makes again. p_until and p_again are those of
-- _forked_events. Locks nothing. Called by _left_children and _gone_children.
create or replace function holdfast._open_child_calls(p_run_id uuid, p_until int, p_again json)
returns table (key text, details json)
language plpgsql stable
as $$
declare
    v_open text[] := array(
        select e.key from holdfast.events e
        where e.run_id = p_run_id and e.idx < p_until and e.event_type = 'ChildStarted'
            and e.key not in (
                select o.key from holdfast.events o
                where o.run_id = p_run_id
                    and o.event_type in ('ChildCompleted', 'ChildFailed', 'ChildCancelRequested')));
begin
    if v_open <> '{}' then  -- else the log need not be judged
        return query
        select e.key, e.details from holdfast._untried_events(p_run_id, p_until, p_again) as e
        where e.event_type = 'ChildStarted' and e.key in (select unnest(v_open));
    end if;
end $$;

-- Return the children that the retry of a run takes over: those with the close policy 'abandon' of
-- calls that are open. Of a child that continued as new, all runs; not those of a deleted run which
-- had the id, and made the same call. Locks nothing. Called by retry_plan, _lock_left_children and
-- _take_over_children.
create or replace function holdfast._left_children(p_run_id uuid, p_until int, p_again json)
returns table (run_id uuid, key text, status text)
language plpgsql stable
set enable_nestloop = off
as $$
begin
    return query
    with recursive chain as (
        select c.key, (c.details ->> 'child_run_id')::uuid as run_id
        from holdfast._open_child_calls(p_run_id, p_until, p_again) as c
        union all
        select c.key, (r.output ->> 'run_id')::uuid
        from chain c
        cross join lateral (
            select r.output, r.status from holdfast.runs r where r.run_id = c.run_id limit 1
        ) as r
        where r.status = 'continued'
    )
    select r.run_id, r.parent_key, r.status
    from chain c
    join holdfast.runs r on r.run_id = c.run_id and r.parent_key = c.key
    where r.parent_run_id = p_run_id and r.parent_close = 'abandon';
end $$;

-- Lock the turn rows of the children that a retry is to take over. Called by fork_run.
create or replace function holdfast._lock_left_children(p_run_id uuid, p_until int, p_again json)
returns void
language plpgsql
as $$
declare
    v_children uuid[];
    v_locked uuid[] := '{}';
begin
    loop  -- until all are locked: one may have continued before it was
        v_children := array(
            select c.run_id from holdfast._left_children(p_run_id, p_until, p_again) as c);
        exit when v_children <@ v_locked;
        perform holdfast._lock_turns(v_children);
        v_locked := v_children;
    end loop;
end $$;

-- Return the children of open calls that a run has let go, and that were deleted after their end,
-- but for calls of p_left: nobody knows how they ended. A child that a rule may have refused in the
-- commit that ended the run is not among them, nor is one that may not be of a workflow. Locks
-- nothing. Called by _with_left.
create or replace function holdfast._gone_children(
    p_run_id uuid, p_until int, p_again json, p_left text[]
) returns table (key text, run_id uuid)
language plpgsql stable
as $$
begin
    return query
    select c.key, (c.details ->> 'child_run_id')::uuid
    from holdfast._open_child_calls(p_run_id, p_until, p_again) as c
    where c.details ->> 'parent_close' = 'abandon' and c.details ->> 'kind' = 'workflow'
        and c.key not in (select u.key from unnest(p_left) as u (key))
        and not exists (  -- the first run may be kept for an hour after the last
            select from holdfast.newest_runs(array[(c.details ->> 'child_run_id')::uuid]) as n
            cross join lateral (
                select r.status from holdfast.runs r where r.run_id = n.newest limit 1
            ) as r
            where r.status <> 'continued')
        and not exists (
            select from holdfast.start_rules s where s.name = c.details ->> 'workflow_name');
end $$;

-- Let a retry take over the children that its origin has let go: it is told of their ends from now
-- on. `again` is p_again with the keys of their calls (`left`), and with those that are not there
-- any more, by key (`gone`); `children` are their runs.
-- Locks: rows of runs that the origin started. Called by fork_run and _copy_attempts.
create or replace function holdfast._take_over_children(
    p_run_id uuid, p_new_run_id uuid, p_until int, p_again json,
    out again json, out children uuid[]
)
language plpgsql
as $$
declare
    v_keys text[];
begin
    perform holdfast._lock_runs(array(
        select c.run_id from holdfast._left_children(p_run_id, p_until, p_again) as c));
    with taken as (
        update holdfast.runs r set parent_run_id = p_new_run_id
        from holdfast._left_children(p_run_id, p_until, p_again) as c
        cross join lateral (
            select r.ctid from holdfast.runs r where r.run_id = c.run_id limit 1
        ) as f
        where r.ctid = f.ctid
        returning r.run_id, r.parent_key, r.status
    )
    select array_agg(t.run_id order by t.run_id),
        array_agg(t.parent_key) filter (where t.status <> 'continued')
    into children, v_keys
    from taken t;
    again := holdfast._with_left(p_run_id, p_until, p_again, v_keys);
end $$;

-- Return what a retry makes again, with the keys of the calls whose children it takes over, or that
-- are not there any more; see _take_over_children. Called by _take_over_children and retry_plan.
create or replace function holdfast._with_left(
    p_run_id uuid, p_until int, p_again json, p_keys text[]
) returns json
language plpgsql stable
as $$
declare
    v_gone json;
begin
    select json_object_agg(g.key, g.run_id), coalesce(p_keys, '{}') || array_agg(g.key)
    into v_gone, p_keys
    from holdfast._gone_children(p_run_id, p_until, p_again, p_keys) as g;
    return case when p_keys is null or p_keys = '{}' then p_again
        else (left(p_again::text, -1) || ',"left":' || array_to_json(p_keys) || ',"gone":'
            || coalesce(v_gone, '{}') || '}')::json end;
end $$;

-- Tell a retry what the children that it has taken over have sent to the runs that it retries, and
-- how those have ended that did so meanwhile, or that they are not there any more. A signal that
-- its log has is not sent again. Returns (topic, payload) notices.
-- Locks: expects the turn rows of the children locked; then as _send_signals and _tell_parents;
-- events. Called by fork_run.
create or replace function holdfast._hear_children(
    p_now timestamptz, p_run_id uuid, p_again json, p_children uuid[]
) returns text[]
language plpgsql
as $$
declare
    v_sent record;
    v_gone record;
begin
    for v_gone in
        select g.key, g.value as run_id from json_each_text(p_again -> 'gone') as g order by g.key
    loop
        perform holdfast._append(p_now, p_run_id, 'ChildFailed', json_build_object(
            'child_run_id', v_gone.run_id, 'status', 'deleted', 'error', json_build_object(
                'kind', 'holdfast.errors.RunNotFound',
                'message', format('run %s was deleted before this retry', v_gone.run_id))),
            v_gone.key);
    end loop;
    if p_children is null then
        return null;
    end if;
    select array_agg(e.run_id order by e.at, e.run_id, e.idx) as run_ids,
        array_agg(e.details order by e.at, e.run_id, e.idx) as details
    into v_sent
    from unnest(p_children) as u (run_id)
    cross join lateral (
        select e.* from holdfast.events e
        where e.run_id = u.run_id and e.event_type = 'SignalSent' offset 0
    ) as e
    where e.details ->> 'run_id' in (
            select f.details ->> 'run_id' from holdfast.events f
            where f.run_id = p_run_id and f.event_type = 'WorkflowForked')
        and e.details ->> 'signal_id' not in (
            select s.key from holdfast.events s
            where s.run_id = p_run_id and s.event_type = 'SignalReceived' and s.key is not null);
    return (select s.notices from holdfast._send_signals(v_sent.run_ids, v_sent.details) as s)
        || holdfast._tell_parents(p_now, array(
            select u.run_id from unnest(p_children) as u (run_id)
            cross join lateral (
                select r.status from holdfast.runs r where r.run_id = u.run_id limit 1
            ) as r
            where r.status <> 'running'));
end $$;

-- Return the run that gets a signal: the parent of the sender, if the signal is for a run that this
-- parent retries, which may have been deleted since. Locks nothing. Called by _send_signals.
create or replace function holdfast._receiver(p_sender uuid, p_target uuid) returns uuid
language plpgsql stable
as $$
begin
    return coalesce((
        select r.parent_run_id from holdfast.runs r
        where r.run_id = p_sender and r.parent_close = 'abandon'
            and (select t.status from holdfast.runs t where t.run_id = p_target)
                is distinct from 'running'
            and exists (
                select from holdfast._forks_since_child(r.parent_run_id, r.parent_key) as f
                where f.run_id = p_target)), p_target);
end $$;

-- Return the parent that a child's code knows: the run that started it, which its parent may retry.
-- Locks nothing. Called by _continue_runs.
create or replace function holdfast._first_parent(p_parent_run_id uuid, p_parent_key text)
returns uuid
language plpgsql stable
as $$
begin
    return coalesce((
        select f.run_id from holdfast._forks_since_child(p_parent_run_id, p_parent_key) as f
        limit 1), p_parent_run_id);
end $$;

-- Return the runs that a run retries and that knew a child of it, the one that started it first.
-- Locks nothing. Called by _first_parent and _receiver.
create or replace function holdfast._forks_since_child(p_run_id uuid, p_key text)
returns table (run_id uuid)
language plpgsql stable
as $$
begin
    return query
    select (f.details ->> 'run_id')::uuid
    from holdfast.runs r
    join holdfast.events f on f.run_id = r.run_id
    where r.run_id = p_run_id and r.clock_at is not null and f.event_type = 'WorkflowForked'
        and f.idx > (
            select min(c.idx) from holdfast.events c
            where c.run_id = p_run_id and c.event_type = 'ChildStarted' and c.key = p_key)
    order by f.idx;
end $$;
