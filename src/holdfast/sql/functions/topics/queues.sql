-- Events that are sent to message queues.

-- Send an event to queues: one message each, in one statement a kind of queue. In a FIFO queue its
-- group is the topic. Queues that do not exist any more are left out. Returns the names of those
-- that got it. Refuses a payload that conditions of a queue with filters cannot be compared with
-- (22023).
-- Locks: shared advisory locks of the queues, in order: deletions of queues wait for them. Called
-- by publish.
create or replace function holdfast._send_event(
    p_now timestamptz, p_queues text[], p_topic text, p_payload json, p_event_id text
) returns text[]
language plpgsql
as $$
declare
    v_headers json := holdfast._event_headers(null, p_topic, p_event_id);
    v_body json := case when pg_column_size(p_payload) > 1500 then p_payload end;
    v_sent text[];
    v_filters text;
begin
    perform pg_advisory_xact_lock_shared(hashtext('holdfast.queue'), u.queue)
    from (select distinct hashtext(n.name) as queue from unnest(p_queues) as n (name) order by 1
        ) as u;
    select min(q.name) into v_filters
    from holdfast.queues q where q.name = any (p_queues) and q.has_filters;
    if v_filters is not null and not holdfast._is_searchable(p_payload) then
        raise invalid_parameter_value using message = format(
            'queue %s, which is subscribed to %s, has filters: the numbers of a payload have up to '
            '131,072 digits before the point and 16,383 after it', v_filters, p_topic);
    end if;
    with targets as materialized (
        select q.queue_id, q.name, q.fifo, q.has_filters,
            holdfast._next_message_id() as message_id
        from (select distinct u.name from unnest(p_queues) as u (name)) as u
        cross join lateral (
            select q.* from holdfast.queues q where q.name = u.name limit 1
        ) as q
    ), plain as (
        insert into holdfast.messages (queue_id, priority, visible_at, message_id, sent_at, payload,
            headers)
        select t.queue_id, 2, p_now, t.message_id, p_now,
            case when v_body is null then p_payload end, v_headers
        from targets t where not t.fifo and not t.has_filters
    ), filtered as (
        insert into holdfast.filtered_messages (queue_id, priority, visible_at, message_id, sent_at,
            payload, headers)
        select t.queue_id, 2, p_now, t.message_id, p_now, p_payload, v_headers
        from targets t where t.has_filters
    ), grouped as (
        insert into holdfast.grouped_messages (queue_id, group_key, message_id, visible_at, sent_at,
            payload, headers)
        select t.queue_id, p_topic, t.message_id, p_now, p_now,
            case when v_body is null then p_payload end, v_headers
        from targets t where t.fifo
    ), tokens as (
        insert into holdfast.group_tokens (queue_id, visible_at, token_id, group_key)
        select t.queue_id, p_now, t.message_id, p_topic from targets t where t.fifo
    ), kept_apart as (
        insert into holdfast.bodies (queue_id, message_id, payload)
        select t.queue_id, t.message_id, v_body
        from targets t where v_body is not null and not t.has_filters
    )
    select coalesce(array_agg(t.name order by t.name), '{}') into v_sent from targets t;
    return v_sent;
end $$;
