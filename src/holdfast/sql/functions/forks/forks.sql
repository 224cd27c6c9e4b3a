-- Fork: a new run with a copy of another's log.

-- Start a run with a copy of the first p_until events of another run's log, or of all. Not copied
-- are the end, what workers did to the run, pauses, and commands that had not ended by then: the
-- new run gives them again. But webhooks are copied, and taken over from a run that has ended; and
-- so are, by a retry, children that the run has let go. p_retry accepts a run that did not
-- complete, and leaves out the failures that ended it and the calls that the code made because of
-- them; with p_failed_steps all failures, and the calls that the code made while it handled one.
-- Results and failures of other calls are kept, also later ones. A cancel is copied, unless p_retry
-- leaves out what the code did because of it. p_input replaces the input, p_results (an object by
-- key) the results of steps and activities. The log ends with WorkflowForked.
--
-- Outcomes: 'forked', 'exists' if the new id is taken, 'missing', 'running' for the retry of a run
-- that has not failed, 'bad_index', 'unknown_key', and 'unreadable' if the log has an event that no
-- worker can read: it would stop the fork as well.
-- Refuses values that are not allowed (22004, 22023).
-- Locks: the origin, so that it is not deleted; of a retry, the turn rows of children that it takes
-- over; the new id; webhooks; of a retry, as _continue_streams and _hear_children. Called by
-- clients.
create or replace function holdfast.fork_run(
    p_run_id uuid, p_new_run_id uuid, p_until int default null, p_retry boolean default false,
    p_input json default null, p_results json default null, p_version int default null,
    p_failed_steps boolean default false,
    out outcome text, out notices text[]
)
language plpgsql
as $$
declare
    v_origin holdfast.runs;
    v_is_there boolean;
    v_until int;
    v_again json;
    v_children uuid[];
begin
    perform holdfast._check_fork(p_run_id, p_new_run_id, p_retry, p_input, p_results, p_version);
    v_is_there := holdfast._hold_runs(array[p_run_id]);
    select * into v_origin from holdfast.runs r where r.run_id = p_run_id;
    if v_origin.kind = 'flow' then
        raise invalid_parameter_value using message = format(
            'run %s is one of a flow: fork it with fork_flow', p_run_id);
    end if;
    select e.idx + 1 into v_until
    from holdfast.events e where e.run_id = p_run_id order by e.idx desc limit 1;
    outcome := case
        when holdfast._has_run(p_new_run_id) then 'exists'
        when not v_is_there then 'missing'
        when p_retry and v_origin.status in ('running', 'completed', 'continued') then 'running'
        when p_until not between 1 and v_until then 'bad_index' end;
    if outcome is not null then
        return;
    end if;
    v_until := coalesce(p_until, v_until);
    if p_retry then
        v_again := holdfast._made_again(p_run_id, v_until, p_failed_steps);
        perform holdfast._lock_left_children(p_run_id, v_until, v_again);
    end if;
    if p_results is not null and exists (
        select from json_object_keys(p_results) as k (key)
        where k.key not in (
            select f.key
            from holdfast._forked_events(p_run_id, v_until, v_again) as f
            where f.event_type in ('StepCompleted', 'ActivityCompleted'))
    ) then
        outcome := 'unknown_key';
        return;
    end if;
    begin
        outcome := holdfast._start_fork(v_origin, p_new_run_id, p_input, p_version);
        if outcome = 'forked' then
            if p_retry then
                select t.again, t.children into v_again, v_children
                from holdfast._take_over_children(p_run_id, p_new_run_id, v_until, v_again) as t;
            end if;
            perform holdfast._take_over_webhooks(p_new_run_id,
                holdfast._copy_log(p_run_id, p_new_run_id, v_until, v_again, p_results));
            perform holdfast._share_payloads(p_run_id, p_new_run_id);
            if p_retry then
                perform holdfast._continue_streams(
                    array[p_run_id], array[json_build_object('run_id', p_new_run_id)]);
            end if;
            notices := array[array['work', v_origin.queue]]
                || holdfast._hear_children(
                    holdfast.now(), p_new_run_id, v_again, v_children);
        end if;
    exception
        when sqlstate 'HF002' then  -- of _readable: nothing of the fork was written
            outcome := 'unreadable';
    end;
end $$;

-- Refuse forks that have a value that is not allowed; the parameters are those of fork_run. Called
-- by fork_run and fork_flow.
create or replace function holdfast._check_fork(
    p_run_id uuid, p_new_run_id uuid, p_retry boolean, p_input json, p_results json,
    p_version int
) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('the run id', p_run_id is not null);
    perform holdfast._check_given('the new run''s id', p_new_run_id is not null);
    perform holdfast._check_given('retry', p_retry is not null);
    perform holdfast._check_json('the input', coalesce(p_input, 'null'));
    perform holdfast._check_json('the results', coalesce(p_results, '{}'));
    if json_typeof(p_results) <> 'object' then
        raise invalid_parameter_value using message = 'the results are a JSON object, by key';
    end if;
    perform holdfast._check_version(p_version);
end $$;

-- Insert the row of a fork, and of its turn. The clock of its code is that of its origin, and so is
-- its build: its log is replayed. Returns
-- 'forked', or 'exists'. Locks: the id. Called by fork_run.
create or replace function holdfast._start_fork(
    p_origin holdfast.runs, p_run_id uuid, p_input json, p_version int
) returns text
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_clock timestamptz := coalesce(p_origin.clock_at, p_origin.started_at, (
        select t.started_at from holdfast.tasks t
        where t.run_id = p_origin.run_id and t.key = ''));
begin
    insert into holdfast.runs (run_id, name, version, queue, priority, input, tags, headers,
        retention, deadline_at, created_at, clock_at, build)
    values (p_run_id, p_origin.name, coalesce(p_version, p_origin.version), p_origin.queue,
        p_origin.priority, coalesce(p_input, p_origin.input), p_origin.tags,
        holdfast._successor_headers(p_origin.headers, p_origin.run_id), p_origin.retention,
        v_now + (p_origin.deadline_at - p_origin.created_at), v_now, v_clock, p_origin.build)
    on conflict do nothing;
    if not found then
        return 'exists';
    end if;
    perform holdfast._copy_attributes(array[p_origin.run_id], array[p_run_id]);
    insert into holdfast.tasks (run_id, queue, handler, priority, visible_at, clock_at)
    values (p_run_id, p_origin.queue,
        holdfast._turn_handler(p_origin.name, coalesce(p_version, p_origin.version),
            p_origin.build), p_origin.priority, v_now, v_clock);
    return 'forked';
end $$;

-- Return the details of an event that a worker can read; raises HF002 for others. Called by
-- _copy_log.
create or replace function holdfast._readable(p_event_type text, p_details json) returns json
language plpgsql immutable
as $$
begin
    if holdfast._is_unreadable(p_event_type, p_details) then
        raise sqlstate 'HF002' using message = 'no worker can read an event of the log';
    end if;
    return p_details;
end $$;

-- Write the log of a fork, and return the digests of webhooks that it has as opened and not used.
-- Raises HF002 if an event cannot be read. Locks nothing that others wait for. Called by fork_run
-- and _copy_attempts.
create or replace function holdfast._copy_log(
    p_run_id uuid, p_new_run_id uuid, p_until int, p_again json, p_results json
) returns text[]
language plpgsql
as $$
declare
    v_length int;
    v_digests text[];
begin
    with copied as (
        insert into holdfast.events (run_id, idx, event_type, key, details, at)
        select p_new_run_id, f.idx, f.event_type, f.key,
            case when p_results is not null
                    and f.event_type in ('StepCompleted', 'ActivityCompleted')
                then holdfast._with_result(f.details, p_results -> f.key)
                else holdfast._readable(f.event_type, f.details) end, f.at
        from holdfast._forked_events(p_run_id, p_until, p_again) as f
        returning event_type, key, details
    )
    select count(*), array_agg(c.details ->> 'digest') filter (
        where c.event_type = 'WebhookOpened' and c.key not in (
            select u.key from copied u where u.event_type = 'WebhookReceived'))
    into v_length, v_digests
    from copied c;
    insert into holdfast.events (run_id, idx, event_type, details, at)
    values (p_new_run_id, v_length, 'WorkflowForked',
        holdfast._forked_details(p_run_id, p_until, p_again), holdfast.now());
    return v_digests;
end $$;

-- Return the details of the event that ends the copy of a log. Random numbers keep the seed of the
-- first origin. `again` names the calls that the copy lacks, null if any other call may come before
-- them: if it lacks a cancel, it may have what the code did beside it. If it ends before the log
-- says that it is that of a retry, it lacks what that retry makes again. The retry of a whole log
-- names what was called because of the failure (`after`): of other calls, transactions may have
-- left results that the log lacks. The copy of the next attempt of a run names the attempt before,
-- and its error. Locks nothing. Called by _copy_log.
create or replace function holdfast._forked_details(
    p_run_id uuid, p_until int, p_again json
) returns json
language plpgsql stable
as $$
begin
    return (
        with forks as materialized (
            select e.details, e.idx >= p_until as is_left_out
            from holdfast.events e
            where e.run_id = p_run_id and e.event_type = 'WorkflowForked'
        )
        select holdfast._with_attempt(p_again, holdfast._with_key(coalesce(
            (select r.key from holdfast.runs r where r.run_id = p_run_id),
            (select f.details ->> 'run_key' from forks f limit 1)), json_build_object(
            'run_id', p_run_id, 'idx', p_until,
            'seed', coalesce((select f.details ->> 'seed' from forks f limit 1), p_run_id::text),
            'again', case
                when p_again ->> 'uncancelled' = 'true'
                    or exists (select from forks f where f.is_left_out
                        and coalesce(json_typeof(f.details -> 'again'), 'null') = 'null') then null
                else array_to_json(array(
                    select unnest(holdfast._texts(p_again -> 'calls'))
                    union
                    select unnest(holdfast._texts(f.details -> 'again')) from forks f
                    where f.is_left_out
                    order by 1)) end,
            'after', case when p_again is not null and not exists (
                    select from holdfast.events e where e.run_id = p_run_id and e.idx >= p_until)
                then coalesce(p_again -> 'after', '[]') end))));
end $$;

-- Return details of WorkflowForked with the key of the first origin, if it has one: the row of a
-- fork has none, but the code that made the copied calls saw it. Called by _forked_details and
-- _start_successor.
create or replace function holdfast._with_key(p_key text, p_details json) returns json
language sql stable
return case when p_key is null then p_details
    else (left(p_details::text, -1) || ',"run_key":' || to_json(p_key) || '}')::json end;

-- Return the key that the steps of a flow's run see: that of its row, or of the first run that it
-- retries. Called by claim_tasks, end_step_tasks, _end_linear_step, _end_linear_steps and
-- _start_successor.
create or replace function holdfast._known_key(p_run_id uuid, p_key text) returns text
language plpgsql stable
as $$
begin
    return coalesce(p_key, (
        select e.details ->> 'run_key' from holdfast.events e
        where e.run_id = p_run_id and e.idx = 1 and e.event_type = 'WorkflowForked'));
end $$;

-- Return the details of a completed step or activity with another result; null leaves them as they
-- are. Called by _copy_log.
create or replace function holdfast._with_result(p_details json, p_result json) returns json
language sql immutable
return case when p_result is null then p_details else (
        select ('{' || string_agg(to_json(d.name) || ':'
            || case d.name when 'result' then p_result else d.value end, ',' order by d.place)
            || '}')::json
        from json_each(p_details) with ordinality as d (name, value, place)) end;

-- Return the events of a log that a fork gets, with new numbers, in the order in which the code saw
-- them: none has `seen` any more, and an event may have another index than in the first log. Calls
-- that a retry makes again, which p_again names, are left out: see _untried_events; it is null for
-- a fork. Every command here has its end, and every end its command; but a webhook is copied
-- without an end, because the code has given its URL to others; and for the next attempt of a run,
-- which has its subscriptions and streams, so are these. So are children that a retry takes over
-- (`left`). Writes to a stream after one that is left out are left out, too, as keys count them.
-- What the code has said of exceptions that it handles is not copied: it says it again. Events of
-- one call have the same key, and types that begin with the same word. If a child is left out, so
-- is a signal to it. Called by fork_run, retry_plan and _copy_log.
create or replace function holdfast._forked_events(
    p_run_id uuid, p_until int, p_again json
) returns table (idx int, event_type text, key text, details json, at timestamptz)
language plpgsql stable
as $$
begin
    return query
    with marked as materialized (
        select e.*, holdfast._seen(e.event_type, e.details) as seen,
            bool_or(e.role = 'command_end' or e.event_type in ('StepCompleted', 'StepFailed')
                    or e.event_type = 'ChildStarted' and e.key in (
                        select unnest(holdfast._texts(p_again -> 'left'))))
                over together as has_end,
            bool_or(e.role = 'command') over together as has_command
        from (
            select e.*, holdfast._event_role(e.event_type) as role
            from holdfast._untried_events(p_run_id, p_until, p_again) as e
        ) as e
        where e.role not in ('end', 'suspension') and e.event_type not in (
                'WorkerLost', 'WorkflowPaused', 'WorkflowResumed', 'WorkflowRescheduled')
            and not (e.event_type = 'ValueRecorded' and left(e.key, 7) = 'caught:')
            and (e.event_type <> 'WorkflowCancelRequested'
                or (p_again ->> 'uncancelled') is distinct from 'true')
        window together as (partition by e.key, left(e.event_type, 4))
    ), strangers as materialized (
        select m.details ->> 'child_run_id' as run_id
        from marked m where m.event_type = 'ChildStarted' and not m.has_end
    )
    select (row_number() over (order by coalesce(k.seen, k.idx), k.seen is null, k.idx))::int - 1,
        k.event_type, k.key, case when k.seen is null then k.details
            else regexp_replace(k.details::text, E'"seen":\\d+,', '')::json end, k.at
    from marked as k
    where case
        when k.event_type = 'SignalSent'
            then k.details ->> 'run_id' not in (select s.run_id from strangers s)
        when k.event_type = 'StepRetryScheduled' then k.has_end or p_again is null
        when k.role in ('command', 'withdrawal') or k.event_type = 'ActivityRetryScheduled'
            then k.has_end or k.event_type = 'WebhookOpened'
                or k.event_type = 'StreamWritten' and p_again is not null and not exists (
                    select from unnest(holdfast._texts(p_again -> 'after')) as a (key)
                    where holdfast._is_later(k.key, a.key))
                or p_again -> 'attempt' is not null and k.event_type = 'EventSubscribed'
        when k.role = 'command_end' then k.has_command
        else true end
    order by 1;
end $$;

-- Return true if a call is a later one of the name and in the task of another: its number is
-- higher. Tasks have numbers, too. Called by _forked_events.
create or replace function holdfast._is_later(p_key text, p_other text) returns boolean
language sql immutable parallel safe
return regexp_replace(p_key, E'#\\d+$', '') = regexp_replace(p_other, E'#\\d+$', '')
    and coalesce(substring(p_key from E'#(\\d+)$')::numeric, 1)
        > coalesce(substring(p_other from E'#(\\d+)$')::numeric, 1);

-- Return how many entries the code had seen when it saw this one; null if it had seen all entries
-- before it. Called by _forked_events and _untried_events.
create or replace function holdfast._seen(p_event_type text, p_details json) returns int
language sql immutable
return case when p_event_type in ('StepCompleted', 'StepFailed', 'TimerFired')
        and left(p_details::text, 8) in ('{"seen":', '{"python') then  -- else no need to match
    substring(left(p_details::text, 60)
        from E'^\\{(?:"python":"[^"]*",)?"seen":(\\d+),')::int end;

-- Return the first p_until events of a log without what a retry makes again, as _made_again says:
-- the failures of `calls`, the calls `after` them with the answers of entities to these, and what
-- only followed from them. After the first `seen` events (in the order in which the code saw them)
-- only results, other failures, the commands that they end, signals, decisions, patches, a cancel
-- and what says of earlier copies are kept. Anywhere, a timer around such a call that had not fired
-- is left out, and without the cancel, which stopped them, all that had not. Called by
-- _forked_events and _open_child_calls.
create or replace function holdfast._untried_events(
    p_run_id uuid, p_until int, p_again json
) returns setof holdfast.events
language plpgsql stable
as $$
declare
    v_calls text[] := holdfast._texts(p_again -> 'calls');
    v_after text[] := holdfast._texts(p_again -> 'after');
    v_seen int := p_again ->> 'seen';
    v_uncancelled boolean := coalesce(p_again ->> 'uncancelled', 'false');
begin
    if coalesce(v_seen, 0) = 0 then
        return query select e.* from holdfast.events e
        where e.run_id = p_run_id and e.idx < p_until;
        return;
    end if;
    return query
    with log as materialized (
        select (e.e).*, row_number() over (
            order by coalesce(e.seen, (e.e).idx), e.seen is null, (e.e).idx) <= v_seen as is_before
        from (
            select e, holdfast._seen(e.event_type, e.details) as seen
            from holdfast.events e where e.run_id = p_run_id and e.idx < p_until
        ) as e
    ), withdrawn as materialized (
        select l.key from log l
        where not l.is_before
            and l.event_type in ('ActivityCancelRequested', 'ChildCancelRequested')
    ), fired as materialized (
        select l.key from log l where l.is_before and l.event_type = 'TimerFired'
    ), after as materialized (
        select u.key from unnest(v_after) as u (key)
    ), calls as materialized (
        select u.key from unnest(v_calls) as u (key)
    )
    select l.run_id, l.idx, l.event_type, l.key, l.details, l.at, l.commit_token
    from log l
    where case
        when l.event_type = 'SignalReceived'
            and holdfast._answered_call(l.key, l.details) in (select a.key from after a) then false
        when l.key in (select a.key from after a) and l.event_type not in (
            'SignalReceived', 'ValueSet', 'UpdateAccepted', 'UpdateRejected', 'UpdateCompleted')
            then false
        when l.event_type in ('TimerScheduled', 'TimerFired')
            then l.key in (select f.key from fired f) or not v_uncancelled
                and not holdfast._surrounds_failure(l.key, v_calls)
        when l.event_type in ('StepFailed', 'ActivityFailed', 'ChildFailed')
            then l.key not in (select c.key from calls c)
                and (l.is_before or l.key not in (select w.key from withdrawn w))
        else l.is_before or holdfast._event_role(l.event_type) in ('command', 'command_end')
            or l.event_type in ('StepCompleted', 'SignalReceived', 'ValueRecorded',
                'WorkflowCancelRequested', 'WorkflowForked') end;
end $$;
