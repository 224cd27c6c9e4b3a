-- Trace contexts among the headers of runs.

-- Return the headers of a run that is made of another: if that was started within a trace, the new
-- run has a trace of its own, with a link to the origin's span. Without an origin the link is to
-- the span in the headers: a schedule that was created within a trace starts runs long after it.
-- The ids of spans are those of holdfast/values/trace_ids.py. Called by _start_fork,
-- _start_successor, _continue_runs and _starts_of.
create or replace function holdfast._successor_headers(p_headers json, p_origin uuid) returns json
language plpgsql immutable parallel safe
as $$
declare
    v_parts text[];
begin
    if p_headers ->> 'traceparent' is null then
        return p_headers;
    end if;
    v_parts := regexp_match(p_headers ->> 'traceparent',
        E'^\\s*[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])(-.*)?\\s*$');
    if v_parts is null then
        return p_headers;
    end if;
    return p_headers::jsonb - 'traceparent' - 'tracestate' || jsonb_build_object(
        'holdfast-trace-link', '00-' || v_parts[1] || '-'
        || coalesce(encode(substr(sha256(uuid_send(p_origin)), 17, 8), 'hex'), v_parts[2])
        || case when v_parts[3] in ('1', '3', '5', '7', '9', 'b', 'd', 'f') then '-01'
            else '-00' end);
end $$;

-- Keep runs that ended without a worker's commit, if workers write traces: one of them will write
-- the span. Locks: expects the runs to be locked; new rows. Called by _end_each, _end_flows,
-- _end_linear_steps and _end_last_step.
create or replace function holdfast._keep_ends(p_now timestamptz, p_run_ids uuid[]) returns void
language plpgsql
as $$
begin
    if exists (select from holdfast.tracing t where t.until > p_now) then
        insert into holdfast.ends_to_trace (run_id, ended_at)
        select u.run_id, p_now from unnest(p_run_ids) as u (run_id) order by u.run_id
        on conflict do nothing;
    end if;
end $$;

-- Take runs that ended without a worker's commit, the caller writes their spans; of two callers
-- each gets others. For the next minute such ends are kept. Refuses a limit below 0 (22023).
-- Locks: the row of tracing, now and then; ends, skipping locked ones. Called by workers.
create or replace function holdfast.take_ends(p_limit int) returns uuid[]
language plpgsql
reset plan_cache_mode
set enable_seqscan = on
as $$
declare
    v_now timestamptz := holdfast.now();
    v_taken uuid[];
begin
    if not exists (
        select from holdfast.tracing t where t.until > v_now + interval '30 seconds')
    then
        insert into holdfast.tracing as t (until) values (v_now + interval '1 minute')
        on conflict (is_the_row) do update set until = greatest(t.until, excluded.until);
    end if;
    with taken as (
        delete from holdfast.ends_to_trace e where e.run_id in (
            select l.run_id from holdfast.ends_to_trace l limit holdfast._limit(p_limit)
            for update skip locked)
        returning e.run_id
    )
    select array_agg(t.run_id order by t.run_id) into v_taken from taken t;
    return coalesce(v_taken, '{}');
end $$;
