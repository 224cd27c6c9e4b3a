-- Trace contexts among the headers of runs.

-- Return the headers of a run that is made of another: if that was started within a trace, the new
-- run has a trace of its own, with a link to the origin's span. The ids of spans are those of
-- holdfast/trace_ids.py. Called by _start_fork, _start_successor
-- and _continue_runs.
create or replace function holdfast._successor_headers(p_headers json, p_origin uuid) returns json
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_parts text[];
begin
    if p_headers ->> 'traceparent' is null then
        return p_headers;
    end if;
    v_parts := regexp_match(p_headers ->> 'traceparent',
        '^\s*[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]([0-9a-f])(-.*)?\s*$');
    if v_parts is null then
        return p_headers;
    end if;
    return p_headers::jsonb - 'traceparent' - 'tracestate' || jsonb_build_object(
        'holdfast-trace-link', '00-' || v_parts[1] || '-'
        || encode(substr(sha256(uuid_send(p_origin)), 17, 8), 'hex')
        || case when v_parts[2] in ('1', '3', '5', '7', '9', 'b', 'd', 'f') then '-01'
            else '-00' end);
end $$;
