-- Runs as callers see them: what lists, counts and answers about single runs return.

-- Return runs as a caller sees them: with the row of the next turn, and the state derived from it.
-- Without p_payloads, input and output are null. Called by clients, wait_for_end, list_runs and
-- count_runs_by.
create or replace function holdfast.get_runs(p_run_ids uuid[], p_payloads boolean default true)
returns table (
    run_id uuid, name text, version int, key text, queue text, priority int, status text,
    state text, input json, output json, error json, tags text[], headers json,
    retention_seconds float8, created_at bigint, started_at bigint, completed_at bigint,
    deadline_at bigint, visible_at bigint, awaiting text[], worker text, attempts int,
    lease_no int, stuck text, paused boolean, parent_run_id uuid, parent_key text, kind text,
    due_at bigint, attributes json, build text, last_failure json
)
language plpgsql stable
as $$
declare
    v_are_any constant boolean := exists (select from holdfast.attributes);
begin
    return query
    select r.run_id, r.name, r.version, r.key, r.queue, r.priority::int, r.status,
        case when r.kind = 'flow' and r.status = 'running'
            then holdfast._flow_state(r.run_id, t.paused)
            else holdfast._state(r.status, t.worker, t.paused, t.stuck,
                coalesce(t.limited_at, t.visible_at)) end,
        case when p_payloads then r.input end, case when p_payloads then r.output end,
        r.error, r.tags, r.headers,
        extract(epoch from r.retention)::float8, holdfast._micros(r.created_at),
        holdfast._micros(coalesce(r.started_at, t.started_at)),
        holdfast._micros(r.completed_at), holdfast._micros(r.deadline_at),
        holdfast._micros(coalesce(t.limited_at, t.visible_at)), t.awaiting, t.worker, t.attempts,
        t.lease_no, t.stuck, t.paused, r.parent_run_id, r.parent_key, r.kind,
        holdfast._micros(r.due_at), a.attributes, r.build,
        case when r.clock_at is not null and r.due_at is not null or r.output ->> 'attempt' <> ''
                and r.status = 'continued'
            then holdfast._last_failure(r.run_id, r.status) end
    from unnest(p_run_ids) with ordinality as u (run_id, place)
    cross join lateral (
        select * from holdfast.runs r where r.run_id = u.run_id limit 1
    ) as r
    left join lateral (
        select * from holdfast.tasks t where t.run_id = u.run_id and t.key = '' limit 1
    ) as t on true
    left join lateral (
        select json_object_agg(a.name, a.value) as attributes
        from holdfast.attributes a where a.run_id = u.run_id
    ) as a on v_are_any
    order by u.place;
end $$;

-- Return the last failed attempt of a run that its policy retries, {"attempt": …, "error": …}: the
-- run itself if it has continued as the next attempt, else the attempt before it; {"attempt": null}
-- for a fork or a retry by hand, whose log may have attempts of its origin. Called by get_runs.
create or replace function holdfast._last_failure(p_run_id uuid, p_status text) returns json
language plpgsql stable
as $$
begin
    return json_build_object('attempt', e.details -> 'attempt', 'error', e.details -> 'error')
    from holdfast.events e
    where e.run_id = p_run_id and e.event_type =
        case p_status when 'continued' then 'WorkflowContinuedAsNew' else 'WorkflowForked' end
    order by e.idx desc limit 1;
end $$;
