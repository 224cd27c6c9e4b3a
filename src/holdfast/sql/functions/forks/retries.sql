-- Retry: find the calls that a run which takes over from a failed one makes again.

-- Return which ended calls of a run its retry would keep (`kept`), and which it would make again:
-- those that failed (`failed`), and those that the code made because of that (`after`). Kept are
-- also those of children that it would take over. In the order of the log, and last one without a
-- key, `cancel`, if the retry has the cancel of the run; nothing of a run that cannot be retried.
-- p_failed_steps is that of fork_run.
-- Refuses nothing. Locks nothing. Called by clients.
create or replace function holdfast.retry_plan(
    p_run_id uuid, p_failed_steps boolean default false
) returns table (key text, fate text)
language plpgsql stable
as $$
declare
    v_until int;
    v_again json;
begin
    select e.idx + 1 into v_until
    from holdfast.runs r
    cross join lateral (
        select e.idx from holdfast.events e where e.run_id = r.run_id order by e.idx desc limit 1
    ) as e
    where r.run_id = p_run_id and r.kind = 'workflow'
        and r.status not in ('running', 'completed', 'continued');
    if v_until is null then
        return;
    end if;
    v_again := holdfast._made_again(p_run_id, v_until, p_failed_steps);
    v_again := holdfast._with_left(p_run_id, v_until, v_again, (
        select array_agg(c.key) from holdfast._left_children(p_run_id, v_until, v_again) as c
        where c.status <> 'continued'));
    return query
    with kept as materialized (
        select f.key from holdfast._forked_events(p_run_id, v_until, v_again) as f
        where f.event_type in ('StepCompleted', 'StepFailed', 'SignalSent')
            or holdfast._event_role(f.event_type) = 'command_end'
        union all
        select unnest(holdfast._texts(v_again -> 'left'))
    ), after as materialized (
        select u.key from unnest(holdfast._texts(v_again -> 'after')) as u (key)
        except
        select unnest(holdfast._texts(v_again -> 'calls'))
    )
    (
        select e.key, case when e.key in (select k.key from kept k) then 'kept'
                when e.key in (select a.key from after a) then 'after' else 'failed' end
        from holdfast.events e
        where e.run_id = p_run_id and (e.event_type in ('StepCompleted', 'StepFailed', 'SignalSent')
            or holdfast._event_role(e.event_type) = 'command_end'
            or e.event_type = 'ChildStarted'
                and e.key in (select unnest(holdfast._texts(v_again -> 'left'))))
        order by e.idx
    )
    union all
    select e.key, 'cancel' from holdfast.events e
    where e.run_id = p_run_id and e.event_type = 'WorkflowCancelRequested'
        and (v_again ->> 'uncancelled') is distinct from 'true';
end $$;

-- Return what a retry of a run makes again: `calls` failed, `seen` entries of the log led to the
-- first of these failures, and `after` are the calls that the code made because of them. As the
-- run's last entry says; no calls if no failure ended it. The entry of a cancelled run has no
-- `calls`, and `after` are those that the code made because of the cancel. Older releases did not
-- record it: _guess_failures finds the first two for failures. With p_failed_steps, `calls` are all
-- that failed, unless the code had cancelled them, and `after` those that it made while it handled
-- a failure. The retry is `uncancelled` if the run ended by its cancel, or if what failed was
-- before it: then what the code called because of the cancel is in `after`. Else its code is
-- cancelled at the same place: what had failed before that is not made again. Calls of entities
-- that failed are in `after` as well. Locks nothing. Called by fork_run and retry_plan.
create or replace function holdfast._made_again(
    p_run_id uuid, p_until int, p_failed_steps boolean
) returns json
language plpgsql stable
as $$
declare
    v_type text;
    v_said json;
    v_calls text[];
    v_cancelled_at int;
    v_uncancelled boolean;
begin
    select e.event_type, coalesce(e.details, '{}') into v_type, v_said
    from holdfast.events e
    where e.run_id = p_run_id and e.idx = p_until - 1
        and e.event_type in ('WorkflowFailed', 'WorkflowCanceled');
    select e.idx into v_cancelled_at
    from holdfast.events e
    where e.run_id = p_run_id and e.idx < p_until and e.event_type = 'WorkflowCancelRequested';
    v_uncancelled := v_cancelled_at is not null and coalesce(v_type = 'WorkflowCanceled'
        or v_cancelled_at + 1 >= nullif((v_said ->> 'seen')::int, 0), false);
    if p_failed_steps then
        v_calls := array(
            (select e.key
            from (
                select e.key, e.idx, e.event_type, min(e.idx) filter (where e.event_type in (
                    'ActivityCancelRequested', 'ChildCancelRequested')) over (partition by e.key)
                    as withdrawn_at
                from holdfast.events e
                where e.run_id = p_run_id and e.idx < p_until and e.event_type in ('StepFailed',
                    'ActivityFailed', 'ChildFailed', 'ActivityCancelRequested',
                    'ChildCancelRequested')
            ) as e
            where (v_uncancelled or e.idx > coalesce(v_cancelled_at, -1))
                and e.event_type in ('StepFailed', 'ActivityFailed', 'ChildFailed')
                and (e.withdrawn_at < case when v_uncancelled then least(e.idx, v_cancelled_at)
                    else e.idx end) is not true
            order by e.idx)
            union all
            select c.key from holdfast._refused_calls(p_run_id, p_until) as c
            where v_uncancelled or c.idx > coalesce(v_cancelled_at, -1));
    end if;
    if cardinality(v_calls) > 0 then
        return json_build_object('calls', v_calls, 'seen', p_until,
            'after', holdfast._with_answered(p_run_id, v_calls,
                holdfast._texts(v_said -> 'handling') || case
                    when v_uncancelled then holdfast._texts(v_said -> 'after') end),
            'uncancelled', v_uncancelled);
    elsif v_type = 'WorkflowCanceled'
        or v_type = 'WorkflowFailed' and not p_failed_steps and v_said ->> 'seen' is not null
    then
        return json_build_object('calls', coalesce(v_said -> 'calls', '[]'),
            'seen', coalesce((v_said ->> 'seen')::int, v_cancelled_at + 1, 0),
            'after', holdfast._with_answered(p_run_id, holdfast._texts(v_said -> 'calls'),
                holdfast._texts(v_said -> 'after')),
            'uncancelled', v_uncancelled);
    elsif p_failed_steps or v_type is distinct from 'WorkflowFailed' then
        return '{"calls":[],"seen":0,"after":[]}';
    end if;
    return (
        select row_to_json(g) from holdfast._guess_failures(p_run_id, p_until) as g);
end $$;

-- Return the calls `after` a failure with those of entities among the calls that failed, and the
-- steps that looked for their answers: the log has them as completed, and a retry makes them again.
-- Called by _made_again and _copy_attempts.
create or replace function holdfast._with_answered(p_run_id uuid, p_calls text[], p_after text[])
returns text[]
language plpgsql stable
as $$
begin
    return p_after || array(
        select unnest(array[e.key, regexp_replace(e.key, E'(#\\d+)?$', E'.answer\\1')])
        from holdfast.events e
        where e.run_id = p_run_id and e.event_type = 'StepCompleted'
            and (e.key in (select unnest(p_calls))) is true);
end $$;

-- Return the calls of entities that failed as answers tell, with the places of these. An answer is
-- that of a call if it names the run that has made it, of the log or of one that was copied, and
-- when that began: it may also have come to an earlier call, of which the log has nothing, or to
-- that of a deleted run with the same id. Locks nothing. Called by _made_again.
create or replace function holdfast._refused_calls(p_run_id uuid, p_until int)
returns table (key text, idx int)
language plpgsql stable
set enable_nestloop = off
as $$
#variable_conflict use_column
begin
    return query
    with copies as materialized (  -- the log, from one copy to the next: who made the calls there
        select f.idx as since, lead(f.idx, 1, 2147483647) over w as until,
            coalesce(lead(f.run_id) over w, p_run_id::text) as run_id,
            holdfast._began(p_run_id, f.idx + 1)::text as began
        from (
            select -1 as idx, null::text as run_id
            union all
            select e.idx, e.details ->> 'run_id' from holdfast.events e
            where e.run_id = p_run_id and e.event_type = 'WorkflowForked'
        ) as f
        window w as (order by f.idx)
    ), answers as materialized (
        select holdfast._answered_call(e.key, e.details) as call, e.idx,
            substr(e.key, 8, 36) as run_id, substring(e.key from E'^.{43}@(\\d+)/') as began
        from holdfast.events e
        where e.run_id = p_run_id and e.idx < p_until and e.event_type = 'SignalReceived'
            and e.key like 'failed/%'
    )
    select s.key, a.idx
    from answers a
    join holdfast.events s on s.run_id = p_run_id and s.event_type = 'StepCompleted'
        and s.key = a.call
    join copies c on c.run_id = a.run_id and s.idx > c.since and s.idx < c.until
    where (a.began = c.began) is not false;
end $$;

-- Return the key of the call of an entity that a signal answers, null for any other signal. Called
-- by _refused_calls and _untried_events.
create or replace function holdfast._answered_call(p_signal_id text, p_details json) returns text
language sql immutable
return case when p_details ->> 'signal_name' = 'update-reply' then substring(
    p_signal_id from E'^(?:answer|failed)/[0-9a-f-]{36}(?:@\\d+)?/(.+)$') end;

-- Return the elements of an array of texts; none for null. Called by _untried_events, retry_plan,
-- _made_again, _forked_details, _forked_events and _copy_attempts.
create or replace function holdfast._texts(p_array json) returns text[]
language plpgsql immutable
as $$
begin
    return array(select json_array_elements_text(coalesce(p_array, '[]')));
end $$;

-- Return the failures that ended a run, from its error and from how its log ends: the call that the
-- error names, and other calls if the code did nothing after they had failed. Called by
-- _made_again.
create or replace function holdfast._guess_failures(
    p_run_id uuid, p_until int, out calls text[], out seen int
)
language plpgsql stable
as $$
begin
    with recursive chain as (
        select 1 as depth, r.error, holdfast._failed_call(r.error) as call
        from holdfast.runs r where r.run_id = p_run_id
        union all
        select c.depth + 1, c.error -> 'cause', holdfast._failed_call(c.error -> 'cause')
        from chain c where c.call is null and json_typeof(c.error -> 'cause') = 'object'
    ), failures as materialized (
        select e.key, e.idx, e.idx > l.idx as is_last
        from holdfast.events e
        cross join lateral (
            select max(e.idx) as idx from holdfast.events e
            where e.run_id = p_run_id and e.idx < p_until
                and holdfast._event_role(e.event_type) not in ('withdrawal', 'suspension')
                and e.event_type not in (
                    'StepFailed', 'ActivityFailed', 'ChildFailed', 'WorkflowFailed',
                    'ActivityRetryScheduled', 'StepRetryScheduled', 'TimerScheduled', 'ValueSet',
                    'WorkerLost', 'WorkflowPaused', 'WorkflowResumed',
                    'WorkflowRescheduled')
        ) as l
        where e.run_id = p_run_id and e.idx < p_until
            and e.event_type in ('StepFailed', 'ActivityFailed', 'ChildFailed')
    ), named as materialized (
        select f.* from failures f
        where f.key = (select c.call from chain c where c.depth = 1)
            or f.is_last and (f.key in (select c.call from chain c) or exists (
                select from chain c
                where c.error ->> 'kind' in (
                    'builtins.ExceptionGroup', 'builtins.BaseExceptionGroup')))
    )
    select coalesce(array_agg(f.key order by f.idx), '{}'), coalesce(min(f.idx) + 1, 0)
    into calls, seen
    from failures f
    where f.idx in (select n.idx from named n)
        or f.is_last and f.idx > (select min(n.idx) from named n);
end $$;

-- Return the key of the call that an error says has failed, null for any other error. Called by
-- _guess_failures.
create or replace function holdfast._failed_call(p_error json) returns text
language sql immutable parallel safe
return case when p_error ->> 'kind'
        ~ E'^holdfast\\.errors\\.(Step|Activity|Child)(Failed|TimedOut)$'
    then substring(p_error ->> 'message' from E'^(?:step|activity|child) (\\S+) failed: ') end;

-- Return the path of the task that made a call, '' for the run's own. Called by _surrounds_failure.
create or replace function holdfast._scope(p_key text) returns text
language sql immutable parallel safe
return case when p_key like '%/%' then regexp_replace(p_key, '/[^/]*$', '') else '' end;

-- Return true if a timer belongs to a task that made one of these calls, or to a task above that
-- one: it is a timeout around the call, which begins again. Called by _untried_events.
create or replace function holdfast._surrounds_failure(p_timer text, p_calls text[])
returns boolean
language sql immutable parallel safe
return holdfast._scope(p_timer) = '' or exists (
    select from unnest(p_calls) as c (key)
    where starts_with(holdfast._scope(c.key) || '/', holdfast._scope(p_timer) || '/'));
