-- Approvals: a run asks, a person decides. An open approval is a row of tasks that no worker
-- claims, so that it is listed even while the run's turn is leased. A decided one is an event.

-- Insert the tasks of approvals whose ApprovalRequested is in the log. Returns no notices.
-- Locks: nothing that others wait for; expects the turn rows locked. Called by _carry_out.
create or replace function holdfast._request_approvals(
    p_now timestamptz, p_run_ids uuid[], p_keys text[], p_details json[]
) returns text[]
language plpgsql
as $$
begin
    insert into holdfast.tasks (
        run_id, key, kind, queue, handler, priority, visible_at, payload, started_at)
    select u.run_id, u.key, 'approval', t.queue, '', t.priority, 'infinity', u.details, p_now
    from unnest(p_run_ids, p_keys, p_details) as u (run_id, key, details)
    cross join lateral (
        select t.queue, t.priority from holdfast.tasks t
        where t.run_id = u.run_id and t.key = '' limit 1
    ) as t;
    return null;
end $$;

-- Delete the tasks of approvals whose ApprovalWithdrawn is in the log. Returns no notices.
-- Locks: expects the turn rows locked; task rows. Called by _carry_out.
create or replace function holdfast._withdraw_approvals(p_run_ids uuid[], p_keys text[])
returns text[]
language plpgsql
as $$
begin
    delete from holdfast.tasks t
    using unnest(p_run_ids, p_keys) as u (run_id, key)
    cross join lateral (
        select t.ctid from holdfast.tasks t
        where t.run_id = u.run_id and t.key = u.key and t.kind = 'approval' limit 1
    ) as f
    where t.ctid = f.ctid;
    return null;
end $$;

-- Decide an approval once: append ApprovalResolved, and wake the run if it awaits a decision.
-- Outcomes are 'decided', 'duplicate' if this decision id was recorded before, 'conflict' if
-- another decision was, 'closed' if the run withdrew the approval or has ended, and 'missing'. The
-- event is the decision that is in force, null if there is none.
-- Refuses values that are not allowed (22004, 22023).
-- Locks: the turn row, the approval's, events. Called by clients.
create or replace function holdfast.decide_approval(
    p_run_id uuid, p_key text, p_decision_id text, p_approved boolean,
    p_by text default null, p_feedback text default null, p_values json default null,
    out outcome text, out event_type text, out key text, out details json, out at bigint,
    out notices text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    perform holdfast._check_decision(
        p_run_id, p_key, p_decision_id, p_approved, p_by, p_feedback, p_values);
    perform holdfast._lock_turns(array[p_run_id]);
    delete from holdfast.tasks t
    where t.run_id = p_run_id and t.key = p_key and t.kind = 'approval';
    if found then
        outcome := 'decided';
        perform holdfast._append(v_now, p_run_id, 'ApprovalResolved', ('{"approved":' || p_approved
            || ',"by":' || coalesce(to_json(p_by)::text, 'null')
            || ',"feedback":' || coalesce(to_json(p_feedback)::text, 'null')
            || ',"decision_id":' || to_json(p_decision_id)
            || ',"values":' || coalesce(p_values::text, 'null') || '}')::json, p_key);
        notices := holdfast._wake(v_now, p_run_id, ':end');
    end if;
    select e.event_type, e.key, e.details, holdfast._micros(e.at)
    into event_type, key, details, at
    from holdfast.events e
    where e.run_id = p_run_id and e.event_type = 'ApprovalResolved' and e.key = p_key;
    outcome := coalesce(outcome, case
        when details ->> 'decision_id' = p_decision_id then 'duplicate'
        when details is not null then 'conflict'
        when exists (
            select from holdfast.events e
            where e.run_id = p_run_id and e.event_type = 'ApprovalRequested' and e.key = p_key
        ) then 'closed'
        else 'missing' end);
end $$;

-- Refuse decisions that have a value that is not allowed; the parameters are those of
-- decide_approval. Called by decide_approval.
create or replace function holdfast._check_decision(
    p_run_id uuid, p_key text, p_decision_id text, p_approved boolean, p_by text,
    p_feedback text, p_values json
) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('the run id', p_run_id is not null);
    perform holdfast._check_given('the key', p_key is not null);
    perform holdfast._check_given('the decision id', p_decision_id is not null);
    perform holdfast._check_given('approved', p_approved is not null);
    perform holdfast._check_id('a decision id', p_decision_id);
    perform holdfast._check_text('a name', p_by);
    perform holdfast._check_text('a feedback', p_feedback);
    perform holdfast._check_json('the values', coalesce(p_values, 'null'));
    if json_typeof(p_values) not in ('object', 'null') then
        raise invalid_parameter_value using message = 'the values are a JSON object';
    end if;
end $$;

-- List the open approvals of a run, or of all, the oldest first. Called by clients.
create or replace function holdfast.list_approvals(
    p_run_id uuid default null, p_limit int default 100
) returns table (
    run_id uuid, key text, workflow text, queue text, requested_at bigint, payload json
)
language plpgsql stable
set plan_cache_mode = force_custom_plan
as $$
begin
    return query
    select t.run_id, t.key, r.name, t.queue, holdfast._micros(t.started_at), t.payload
    from (
        select * from holdfast.tasks t
        where t.kind = 'approval' and (p_run_id is null or t.run_id = p_run_id)
        order by t.started_at, t.run_id, t.key limit holdfast._limit(p_limit)
    ) as t
    join holdfast.runs r on r.run_id = t.run_id
    order by t.started_at, t.run_id, t.key;
end $$;
