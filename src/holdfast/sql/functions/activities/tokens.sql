-- Activities that programs complete from outside, with the token of an attempt.

-- End an attempt from outside. Called by complete_activity and fail_activity.
create or replace function holdfast._end_by_token(
    p_token text, p_result json, p_error json, p_retryable boolean,
    out outcome text, out notices text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_parts text[] := regexp_match(
        p_token, '^([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):([0-9]{1,9}):(.+)$');
begin
    perform holdfast._check_given('the token', p_token is not null);
    if v_parts is null then
        raise invalid_parameter_value using message =
            format('%s is not the token of an activity', quote_literal(left(p_token, 200)));
    end if;
    select e.outcomes[1], e.notices into outcome, notices
    from holdfast.end_activities(null, array[v_parts[1]::uuid], array[v_parts[3]],
        array[v_parts[2]::int], array[p_result], array[p_error], array[p_retryable],
        array[false], array[null::bigint], array[null::json]) as e;
end $$;

-- Complete an activity with the token of one of its attempts. Outcomes and notices are those of
-- end_activities. Refuses malformed tokens and JSON that no run could read (22004, 22023).
-- Locks: as end_activities. Called by users.
create or replace function holdfast.complete_activity(
    p_token text, p_result json default 'null', out outcome text, out notices text[]
)
language sql
as $$
    select outcome, notices
    from holdfast._end_by_token(p_token, coalesce(p_result, 'null'), null, false)
$$;

-- Fail the attempt that has this token. If p_retryable, the activity's policy decides if there is
-- another attempt. Outcomes and notices are those of end_activities. Refuses malformed tokens, and
-- a message that is too long (22004, 22023).
-- Locks: as end_activities. Called by users.
create or replace function holdfast.fail_activity(
    p_token text, p_message text, p_retryable boolean default true,
    out outcome text, out notices text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    perform holdfast._check_given('retryable', p_retryable is not null);
    perform holdfast._check_text('a message', p_message);
    select e.outcome, e.notices into outcome, notices
    from holdfast._end_by_token(p_token, null, json_build_object(
        'kind', 'builtins.Exception', 'message', coalesce(p_message, '')), p_retryable) as e;
end $$;
