-- Retry: find the calls that a run which takes over from a failed one makes again.

-- Return the calls whose failures ended a run, and how many entries of its log led to the first of
-- them, as its last entry says; no calls if no failure ended it. Older releases did not record
-- them: _guess_failures finds them. Locks nothing. Called by fork_run.
create or replace function holdfast._fatal_failures(
    p_run_id uuid, p_until int, out calls text[], out seen int
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_said json;
begin
    calls := '{}';
    seen := 0;
    select coalesce(e.details, '{}') into v_said
    from holdfast.events e
    where e.run_id = p_run_id and e.idx = p_until - 1 and e.event_type = 'WorkflowFailed';
    if v_said ->> 'seen' is not null then
        calls := array(select json_array_elements_text(v_said -> 'calls'));
        seen := v_said ->> 'seen';
    elsif v_said is not null then
        select g.calls, g.seen into calls, seen
        from holdfast._guess_failures(p_run_id, p_until) as g;
    end if;
end $$;

-- Return the failures that ended a run, from its error and from how its log ends: the call that the
-- error names, and other calls if the code did nothing after they had failed. Called by
-- _fatal_failures.
create or replace function holdfast._guess_failures(
    p_run_id uuid, p_until int, out calls text[], out seen int
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
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
                    'WorkerLost', 'WorkflowPaused', 'WorkflowResumed')
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
return case when p_error ->> 'kind' ~ '^holdfast\.errors\.(Step|Activity|Child)(Failed|TimedOut)$'
    then substring(p_error ->> 'message' from '^(?:step|activity|child) (\S+) failed: ') end;

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
