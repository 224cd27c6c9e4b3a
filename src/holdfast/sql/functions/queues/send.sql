-- Send messages, in the caller's transaction.

-- Send messages to a queue. Returns their ids in the order given. A null array stands for nulls.
--
-- A message is due p_delays seconds from now, or at p_due_ats, in microseconds since 1970. In a
-- FIFO queue each has a group of p_groups. A message whose deduplication id is known is not sent:
-- the answer is the id of the first one. Priorities are 0 (most urgent) to 4, by default 2, in
-- queues that have them. Headers are objects of texts.
--
-- Receivers are not woken: they find the messages at their next poll, or clients notify them after
-- the commit. Refuses an unknown queue (HFQ01), nulls (22004), and values that are not allowed or
-- do not fit the kind of the queue (22023).
-- Locks: a shared advisory lock of the queue, for which its deletion waits; new deduplication ids,
-- in order: another send of the same id waits for this one. Called by users and clients.
create or replace function holdfast.send_messages(
    p_queue text, p_payloads json[], p_delays float8[] default null,
    p_groups text[] default null, p_dedup_ids text[] default null,
    p_priorities int[] default null, p_headers json[] default null,
    p_due_ats bigint[] default null
) returns bigint[]
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_id int;
    v_fifo boolean;
    v_dedup_seconds float8;
    v_priorities boolean;
    v_filters boolean;
    v_simple boolean := p_delays is null and p_groups is null and p_dedup_ids is null
        and p_priorities is null and p_headers is null and p_due_ats is null;
    v_longest int;
    v_ids bigint[];
    v_new boolean[];
begin
    perform pg_advisory_xact_lock_shared(hashtext('holdfast.queue'), hashtext(p_queue));
    select q.queue_id, q.fifo, q.dedup_seconds, q.has_priorities, q.has_filters
    into v_id, v_fifo, v_dedup_seconds, v_priorities, v_filters
    from holdfast.queues q where q.name = p_queue;
    if v_id is null then
        perform holdfast._no_queue(p_queue);
    end if;
    if p_due_ats is not null then
        p_delays := array(
            select holdfast._delay(v_now, u.delay, u.due_at)
            from unnest(p_delays, p_due_ats) with ordinality as u (delay, due_at, place)
            order by u.place);
    end if;
    -- Nothing is compressed in an array: sizes are those of the texts, with headers of 4 bytes.
    -- An unnest in a select list does not copy the payloads, one in a from clause does.
    select max(coalesce(pg_column_size(u.payload), 2147483647)) into v_longest
    from (select unnest(p_payloads) as payload) as u;
    -- One search through all payloads costs less than to test each with _is_plain; that for one
    -- character is the quickest.
    if (v_simple and v_longest <= 516
            and (strpos(array_to_string(p_payloads, ','), E'\\') = 0
                or strpos(array_to_string(p_payloads, ','), E'\\u') = 0)) is not true
        and not holdfast._are_messages(
            p_payloads, p_delays, p_groups, p_dedup_ids, p_priorities, p_headers)
    then
        perform holdfast._check_messages(
            p_payloads, p_delays, p_groups, p_dedup_ids, p_priorities, p_headers);
    end if;
    if v_fifo <> (p_groups is not null) or p_priorities is not null and not v_priorities then
        raise invalid_parameter_value using message = case
            when v_fifo = (p_groups is not null) then format(
                'queue %s was created without priorities', p_queue)
            when v_fifo then format('queue %s is FIFO: each message needs a group', p_queue)
            else format('queue %s is not FIFO: its messages do not have groups', p_queue) end;
    end if;
    if cardinality(p_payloads) = 0 then
        return '{}';
    end if;
    if p_dedup_ids is not null then
        select d.ids, d.is_new into v_ids, v_new
        from holdfast._deduplicate(v_id, v_now, v_now + v_dedup_seconds * interval '1 second',
            p_dedup_ids, cardinality(p_payloads)) as d;
    end if;
    if v_fifo then
        return holdfast._send_grouped(
            v_id, v_now, p_payloads, p_delays, p_groups, p_headers, v_ids, v_new);
    end if;
    if v_filters then
        v_ids := coalesce(v_ids, array(
            select holdfast._next_message_id()
            from generate_series(1, cardinality(p_payloads))));
        begin
            insert into holdfast.filtered_messages (queue_id, priority, visible_at, message_id,
                sent_at, payload, headers)
            select v_id, coalesce(u.priority, 2),
                v_now + coalesce(u.delay, 0) * interval '1 second',
                u.message_id, v_now, u.payload, u.headers
            from unnest(p_payloads, p_delays, p_priorities, p_headers, v_ids, v_new)
                as u (payload, delay, priority, headers, message_id, is_new)
            where u.is_new is not false;
        exception when numeric_value_out_of_range then
            raise invalid_parameter_value using message = format(
                'queue %s has filters: the numbers of a payload have up to 131,072 digits before '
                'the point and 16,383 after it', p_queue);
        end;
        return v_ids;
    end if;
    if v_simple and v_longest <= 1500 then
        with sent as (
            insert into holdfast.messages (queue_id, priority, visible_at, message_id, sent_at,
                payload)
            select v_id, 2, v_now, holdfast._next_message_id(), v_now, u.payload
            from (select unnest(p_payloads) as payload) as u
            returning message_id
        )
        select array_agg(s.message_id) into v_ids from sent s;
        return v_ids;
    end if;
    if v_ids is null then
        with sent as (
            insert into holdfast.messages (queue_id, priority, visible_at, message_id, sent_at,
                payload, headers)
            select v_id, coalesce(u.priority, 2),
                case when u.delay > 0 then v_now + u.delay * interval '1 second' else v_now end,
                holdfast._next_message_id(), v_now,
                case when pg_column_size(u.payload) <= 1500 then u.payload end, u.headers
            from unnest(p_payloads, p_delays, p_priorities, p_headers)
                as u (payload, delay, priority, headers)
            returning message_id, payload
        )
        select array_agg(s.message_id), array_agg(s.payload is null) into v_ids, v_new
        from sent s;
        if true = any (v_new) then
            perform holdfast._send_bodies(v_id, v_ids, p_payloads, v_new);
        end if;
        return v_ids;
    end if;
    insert into holdfast.messages (queue_id, priority, visible_at, message_id, sent_at,
        payload, headers)
    select v_id, coalesce(u.priority, 2), v_now + coalesce(u.delay, 0) * interval '1 second',
        u.message_id, v_now,
        case when pg_column_size(u.payload) <= 1500 then u.payload end, u.headers
    from unnest(p_payloads, p_delays, p_priorities, p_headers, v_ids, v_new)
        as u (payload, delay, priority, headers, message_id, is_new)
    where u.is_new;
    perform holdfast._send_bodies(v_id, v_ids, p_payloads, v_new);
    return v_ids;
end $$;

-- Keep large payloads of messages apart, of those in p_which. Called by change_message,
-- send_messages and _send_grouped.
create or replace function holdfast._send_bodies(
    p_queue_id int, p_ids bigint[], p_payloads json[], p_which boolean[]
) returns void
language plpgsql
reset enable_seqscan
as $$
begin
    insert into holdfast.bodies (queue_id, message_id, payload)
    select p_queue_id, u.message_id, u.payload
    from unnest(p_ids, p_payloads, p_which) as u (message_id, payload, which)
    where u.which and pg_column_size(u.payload) > 1500;
end $$;

-- Send messages to a FIFO queue, each group with a token for each moment at which it has some due.
-- p_ids and p_new are null without deduplication ids. Called by send_messages.
create or replace function holdfast._send_grouped(
    p_queue_id int, p_now timestamptz, p_payloads json[], p_delays float8[], p_groups text[],
    p_headers json[], p_ids bigint[], p_new boolean[]
) returns bigint[]
language plpgsql
as $$
declare
    v_ids bigint[];
    v_big boolean[];
begin
    with sent as (
        insert into holdfast.grouped_messages (queue_id, group_key, message_id, visible_at,
            sent_at, payload, headers)
        select p_queue_id, u.group_key, coalesce(u.message_id, holdfast._next_message_id()),
            case when u.delay > 0 then p_now + u.delay * interval '1 second' else p_now end, p_now,
            case when pg_column_size(u.payload) <= 1500 then u.payload end, u.headers
        from unnest(p_payloads, p_delays, p_groups, p_headers, p_ids, p_new)
            as u (payload, delay, group_key, headers, message_id, is_new)
        where u.is_new is not false
        returning group_key, message_id, visible_at, payload
    ), tokens as (
        insert into holdfast.group_tokens (queue_id, visible_at, token_id, group_key)
        select p_queue_id, s.visible_at, min(s.message_id), s.group_key from sent s
        group by s.group_key, s.visible_at
        order by 2, 3
    )
    select array_agg(s.message_id), array_agg(s.payload is null) into v_ids, v_big from sent s;
    if p_ids is null then
        if true = any (v_big) then
            perform holdfast._send_bodies(p_queue_id, v_ids, p_payloads, v_big);
        end if;
        return v_ids;
    end if;
    perform holdfast._send_bodies(p_queue_id, p_ids, p_payloads, p_new);
    return p_ids;
end $$;

-- Send one message. Returns its id. See send_messages for the values and what is refused.
-- Locks: as send_messages. Called by users.
create or replace function holdfast.send(
    p_queue text, p_payload json, p_group text default null, p_dedup_id text default null,
    p_delay_seconds float8 default null, p_priority int default null, p_headers json default null,
    p_at timestamptz default null
) returns bigint
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_now timestamptz := holdfast.now();
    v_id int;
    v_message bigint;
begin
    perform pg_advisory_xact_lock_shared(hashtext('holdfast.queue'), hashtext(p_queue));
    select q.queue_id into v_id from holdfast.queues q
    where q.name = p_queue and not q.fifo and not q.has_filters;
    if v_id is null or p_dedup_id is not null or p_group is not null or p_priority is not null
        or p_delay_seconds is not null or p_headers is not null or p_at is not null
        or (holdfast._is_plain(p_payload) or octet_length(p_payload::text) <= 1496
            and holdfast._is_shallow(p_payload)) is not true
    then
        return (holdfast.send_messages(p_queue, array[p_payload],
            case when p_delay_seconds is not null then array[p_delay_seconds] end,
            case when p_group is not null then array[p_group] end,
            case when p_dedup_id is not null then array[p_dedup_id] end,
            case when p_priority is not null then array[p_priority] end,
            case when p_headers is not null then array[p_headers] end,
            case when p_at between to_timestamp(-1e10) and to_timestamp(1e10)
                then array[holdfast._micros(p_at)]
                when p_at is not null then array[9223372036854775807]  -- which is refused
            end))[1];
    end if;
    insert into holdfast.messages (queue_id, priority, visible_at, message_id, sent_at, payload)
    values (v_id, 2, v_now, holdfast._next_message_id(), v_now, p_payload)
    returning message_id into v_message;
    return v_message;
end $$;

-- Give each message an id; one whose deduplication id is known gets the id of the first one.
-- Locks: the new deduplication ids, in order: another send of the same id waits for this one.
-- Called by send_messages.
create or replace function holdfast._deduplicate(
    p_queue_id int, p_now timestamptz, p_until timestamptz, p_dedup_ids text[], p_count int,
    out ids bigint[], out is_new boolean[]
)
language plpgsql
as $$
declare
    v_drawn bigint[] := array(
        select holdfast._next_message_id() from generate_series(1, p_count));
    v_won text[];
    v_is_gone boolean;
begin
    for v_try in 1 .. 10 loop
        with asked as (
            select distinct on (u.dedup_id collate "C") u.dedup_id, u.message_id
            from unnest(p_dedup_ids, v_drawn) with ordinality as u (dedup_id, message_id, place)
            where u.dedup_id is not null
            order by u.dedup_id collate "C", u.place
        ), won as (
            insert into holdfast.deduplications (queue_id, dedup_id, message_id, expires_at)
            select p_queue_id, a.dedup_id, a.message_id, p_until from asked a
            order by a.dedup_id collate "C"
            on conflict do nothing
            returning dedup_id
        )
        select array_agg(w.dedup_id) into v_won from won w;
        if cardinality(v_won) = p_count then  -- all are new: the usual case
            ids := v_drawn;
            is_new := array_fill(true, array[p_count]);
            return;
        end if;
        -- Those that are known are locked, and then checked: what has expired is made again.
        perform from (
            select distinct u.dedup_id collate "C" as dedup_id
            from unnest(p_dedup_ids) as u (dedup_id)
            where u.dedup_id is not null and u.dedup_id not in (select unnest(v_won))
            order by 1
        ) as u
        cross join lateral (
            select from holdfast.deduplications d
            where d.queue_id = p_queue_id and d.dedup_id = u.dedup_id and d.expires_at <= p_now
            for update
        ) as d;
        update holdfast.deduplications d set message_id = a.message_id, expires_at = p_until
        from (
            select u.dedup_id, min(u.message_id) as message_id
            from unnest(p_dedup_ids, v_drawn) as u (dedup_id, message_id)
            where u.dedup_id is not null and u.dedup_id not in (select unnest(v_won))
            group by u.dedup_id
        ) as a
        where d.queue_id = p_queue_id and d.dedup_id = a.dedup_id and d.expires_at <= p_now;
        select array_agg(coalesce(d.message_id, u.message_id) order by u.place),
            array_agg(coalesce(d.message_id = u.message_id, true) order by u.place),
            bool_or(u.dedup_id is not null and d.message_id is null)
        into ids, is_new, v_is_gone
        from unnest(p_dedup_ids, v_drawn) with ordinality as u (dedup_id, message_id, place)
        left join lateral (
            select d.message_id from holdfast.deduplications d
            where d.queue_id = p_queue_id and d.dedup_id = u.dedup_id limit 1
        ) as d on true;
        exit when not v_is_gone;  -- one had expired, and maintenance has just deleted it
    end loop;
end $$;
