-- Message queues for people and for programs in any language: a row a message, receipts as texts.

-- Receive messages, each as a row with its receipt; see receive_messages for what is received and
-- what is refused.
-- Locks: as receive_messages. Called by users.
create or replace function holdfast.receive(
    p_queue text, p_limit int default 1, p_visibility_seconds float8 default null,
    p_contains json default null, p_per_group int default 1
) returns table (
    receipt text, message_id bigint, group_key text, attempts int, sent_at timestamptz,
    payload json, headers json, error text
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return query
    select format('%s.%s.%s', r.queue_id, r.delivery_id, m.place), m.message_id, r.group_key,
        m.attempts, m.sent_at, m.payload, m.headers, m.error
    from holdfast.receive_messages(p_queue, p_limit, p_visibility_seconds,
        p_contains => p_contains, p_per_group => p_per_group) as r
    cross join lateral unnest(r.message_ids, r.attempts, r.sent_ats, r.payloads, r.headers,
        r.errors) with ordinality
        as m (message_id, attempts, sent_at, payload, headers, error, place)
    where r.delivery_id is not null;
end $$;

-- Acknowledge messages. Returns for each receipt whether it was in flight still. Refuses texts that
-- are not receipts (22023).
-- Locks: as ack_messages. Called by users.
create or replace function holdfast.ack(variadic p_receipts text[]) returns boolean[]
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return (
        select a.acked
        from holdfast._receipts(p_receipts) as r
        cross join lateral holdfast.ack_messages(r.queue_ids, r.delivery_ids, r.places) as a);
end $$;

-- Give messages back: due again after a delay, or dead letters if received too often. Returns for
-- each receipt whether it was in flight still. Refuses texts that are not receipts, and delays that
-- are not allowed (22023).
-- Locks: as return_messages. Called by users.
create or replace function holdfast.nack(
    p_receipts text[], p_delay_seconds float8 default 0, p_error text default null
) returns boolean[]
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return (
        select b.returned
        from holdfast._receipts(p_receipts) as r
        cross join lateral holdfast.return_messages(r.queue_ids, r.delivery_ids, r.places,
            array(select p_delay_seconds from unnest(r.queue_ids)),
            array(select p_error from unnest(r.queue_ids))) as b);
end $$;

-- Keep messages in flight for so many seconds from now; what was received together is kept
-- together. Returns for each receipt whether it was in flight still. Refuses texts that are not
-- receipts, and times that are not allowed (22004, 22023).
-- Locks: as extend_deliveries. Called by users.
create or replace function holdfast.extend(p_receipts text[], p_seconds float8)
returns boolean[]
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return (
        select holdfast.extend_deliveries(r.queue_ids, r.delivery_ids, p_seconds)
        from holdfast._receipts(p_receipts) as r);
end $$;

-- Return what receipts say. Refuses texts that are not receipts (22023), and nulls (22004). Called
-- by ack, extend and nack.
create or replace function holdfast._receipts(
    p_receipts text[], out queue_ids int[], out delivery_ids uuid[], out places int[]
)
language plpgsql immutable
as $$
declare
    v_receipt text;
begin
    perform holdfast._check_given('the receipts', p_receipts is not null);
    foreach v_receipt in array p_receipts loop
        perform holdfast._check_given('a receipt', v_receipt is not null);
        if v_receipt !~ E'^[0-9]+\\.[0-9a-f-]+\\.[0-9]+$'
            or octet_length(split_part(v_receipt, '.', 1)) > 9
            or octet_length(split_part(v_receipt, '.', 3)) > 9
            or translate(split_part(v_receipt, '.', 2), '0123456789abcdef', repeat('0', 16))
                <> '00000000-0000-0000-0000-000000000000'
        then
            raise invalid_parameter_value using message = format(
                '%s is not a receipt: a receive gives one with each message',
                quote_literal(left(v_receipt, 200)));
        end if;
    end loop;
    select coalesce(array_agg(split_part(u.receipt, '.', 1)::int order by u.place), '{}'),
        coalesce(array_agg(split_part(u.receipt, '.', 2)::uuid order by u.place), '{}'),
        coalesce(array_agg(split_part(u.receipt, '.', 3)::int order by u.place), '{}')
    into queue_ids, delivery_ids, places
    from unnest(p_receipts) with ordinality as u (receipt, place);
end $$;
