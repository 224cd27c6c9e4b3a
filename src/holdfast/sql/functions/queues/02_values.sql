-- Refuse messages that nobody could store or read.

-- Return true if messages can be sent: each payload is JSON that every reader can read, arrays have
-- one element a message, and their values are allowed.
create or replace function holdfast._are_messages(
    p_payloads json[], p_delays float8[], p_groups text[], p_dedup_ids text[],
    p_priorities int[], p_headers json[]
) returns boolean
language plpgsql stable
reset enable_seqscan
as $$
declare
    v_count int := cardinality(p_payloads);
begin
    if not (select coalesce(bool_and(holdfast._is_legible(u.payload)), true)
        from unnest(p_payloads) as u (payload))
    then
        return false;
    end if;
    return (
        coalesce(cardinality(p_delays), v_count) = v_count
        and coalesce(cardinality(p_groups), v_count) = v_count
        and coalesce(cardinality(p_dedup_ids), v_count) = v_count
        and coalesce(cardinality(p_priorities), v_count) = v_count
        and coalesce(cardinality(p_headers), v_count) = v_count
        and (p_delays is null or (select bool_and(holdfast._is_seconds(coalesce(u.delay, 0)))
            from unnest(p_delays) as u (delay)) is not false)
        and (p_groups is null or (select bool_and(u.key is not null and holdfast._is_id(u.key))
            from unnest(p_groups) as u (key)) is not false)
        and (p_dedup_ids is null or (select bool_and(u.id is null or holdfast._is_id(u.id))
            from unnest(p_dedup_ids) as u (id)) is not false)
        and (p_priorities is null or (select bool_and(u.priority is null
                or u.priority between 0 and 4)
            from unnest(p_priorities) as u (priority)) is not false)
        and (p_headers is null or (select bool_and(u.headers is null
                or holdfast._is_of_texts('object', u.headers))
            from unnest(p_headers) as u (headers)) is not false)
    ) is true;
end $$;

-- Return true if conditions can be compared with a JSON text: jsonb can hold it. Its numbers have
-- limits that those of json do not have. Called by _check_message_change, _check_receive,
-- _send_event, receive_messages and return_messages.
create or replace function holdfast._is_searchable(p_value json) returns boolean
language plpgsql immutable
as $$
begin
    return p_value::jsonb is not null;
exception when data_exception or program_limit_exceeded then
    return false;
end $$;

-- Say what is wrong with messages that cannot be sent. Refuses nulls (22004) and values that are
-- not allowed (22023).
create or replace function holdfast._check_messages(
    p_payloads json[], p_delays float8[], p_groups text[], p_dedup_ids text[], p_priorities int[],
    p_headers json[]
) returns void
language plpgsql immutable
as $$
declare
    v_one record;
begin
    perform holdfast._check_given('the payloads', p_payloads is not null);
    for v_one in
        select u.*
        from unnest(p_payloads, p_delays, p_groups, p_dedup_ids, p_priorities, p_headers)
            as u (payload, delay, group_key, dedup_id, priority, headers)
    loop
        perform holdfast._check_given('a payload', v_one.payload is not null);
        perform holdfast._check_json('payload', v_one.payload);
        if not holdfast._is_seconds(coalesce(v_one.delay, 0)) then
            raise invalid_parameter_value using message = format(
                'a delay is 0 to 10,000,000,000 seconds, not %s', v_one.delay);
        end if;
        perform holdfast._check_id('a group', v_one.group_key);
        if p_groups is not null then
            perform holdfast._check_given('a group', v_one.group_key is not null);
        end if;
        perform holdfast._check_id('a deduplication id', v_one.dedup_id);
        perform holdfast._check_priority(v_one.priority);
        perform holdfast._check_texts('headers', 'object', v_one.headers);
    end loop;
    raise invalid_parameter_value using message =
        'the arrays of a call that sends messages have one element for each message';
end $$;

-- Return how many seconds from now a message is due: a delay, or the time until a moment; null if
-- neither is given. Refuses both, and a moment that timestamps do not reach (22023). Called by
-- send_messages and change_message.
create or replace function holdfast._delay(p_now timestamptz, p_delay float8, p_due_at bigint)
returns float8
language plpgsql immutable
as $$
begin
    if p_due_at is null then
        return p_delay;
    elsif p_delay is not null then
        raise invalid_parameter_value using message =
            'a message has a delay or a moment at which it is due, not both';
    end if;
    perform holdfast._check_moment('a message', p_due_at);
    return greatest(0, (p_due_at - holdfast._micros(p_now)) / 1e6);
end $$;
