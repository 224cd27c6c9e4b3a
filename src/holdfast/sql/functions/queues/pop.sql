-- Receive and acknowledge in one call.

-- Receive messages as receive_messages does, and acknowledge them in the same transaction: they are
-- gone when it commits. Refuses what that refuses.
-- Locks: as receive_messages. Called by pop and clients.
create or replace function holdfast.pop_messages(
    p_queue text, p_limit int default 1, p_since bigint[] default null,
    p_contains json default null, p_per_group int default 1, p_joined boolean default true
) returns table (
    now bigint, next_due_at bigint, newest bigint[], acked boolean[], freed boolean,
    queue_id int, delivery_id uuid, group_key text, message_ids bigint[], attempts int[],
    sent_ats timestamptz[], payloads json[], headers json[], errors text[]
)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_queue_id int;
    v_ids uuid[] := '{}';
begin
    for now, next_due_at, newest, acked, freed, queue_id, delivery_id, group_key, message_ids,
        attempts, sent_ats, payloads, headers, errors
    in select r.* from holdfast.receive_messages(p_queue, p_limit, p_since => p_since,
        p_contains => p_contains, p_per_group => p_per_group, p_joined => p_joined) as r
    loop
        if delivery_id is not null then
            v_queue_id := queue_id;
            v_ids := v_ids || delivery_id;
        elsif v_ids <> '{}' then  -- the last row of a FIFO queue: it says if a group has more
            select a.freed into freed from holdfast._ack(v_queue_id, v_ids) as a;
            v_ids := '{}';
        end if;
        return next;
    end loop;
    if v_ids <> '{}' then
        perform holdfast._ack(v_queue_id, v_ids);
    end if;
end $$;

-- Receive messages and acknowledge them in the same transaction, each as a row. See receive for
-- what is received and refused.
-- Locks: as receive_messages. Called by users.
create or replace function holdfast.pop(
    p_queue text, p_limit int default 1, p_contains json default null, p_per_group int default 1
) returns table (
    message_id bigint, group_key text, attempts int, sent_at timestamptz, payload json,
    headers json, error text
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return query
    select m.message_id, r.group_key, m.attempts, m.sent_at, m.payload, m.headers, m.error
    from holdfast.pop_messages(
        p_queue, p_limit, p_contains => p_contains, p_per_group => p_per_group) as r
    cross join lateral unnest(r.message_ids, r.attempts, r.sent_ats, r.payloads, r.headers,
        r.errors) as m (message_id, attempts, sent_at, payload, headers, error)
    where r.delivery_id is not null;
end $$;
