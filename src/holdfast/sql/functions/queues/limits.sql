-- Limits of message queues: how many messages are in flight at once, and how many are handed out in
-- a period. They are the limits of the kinds concurrency and rate of the queue of that name; tasks
-- of that queue count for themselves. What is in flight is known from the deliveries; the uses of
-- rates are in limit_uses, under the limit's id with a minus. Receives of a queue with limits come
-- one after the other, until they commit: each counts what those before it took.

-- Return the limits that concern the messages of a queue. Called by all that apply or count them.
create or replace function holdfast._message_limits(p_queue text) returns setof holdfast.limits
language sql stable
begin atomic
    select l.* from holdfast.limits l
    where l.scope = 'queue' and l.name = p_queue and l.kind in ('concurrency', 'rate')
        and not l.removed;
end;

-- Note in a queue whether there are limits for its messages. Who creates the queue and who sets a
-- limit at the same moment wait for each other here.
-- Locks: an advisory lock of the name; the queue's row. Called by create_queue,
-- _ensure_dead_letters and _tell_limited.
create or replace function holdfast._note_limits(p_queue text) returns void
language plpgsql
as $$
begin
    perform pg_advisory_xact_lock(hashtext('holdfast.limits'), hashtext(p_queue));
    update holdfast.queues q set is_limited = not q.is_limited
    where q.name = p_queue
        and q.is_limited <> exists (select from holdfast._message_limits(p_queue));
end $$;

-- Return what limits without a key let a receive take: `room` messages, null for any number, and
-- when a rate allows more. `holds` is true if messages count while they are in flight, `keyed` if
-- there are limits with a key. `busy` is true if another receive has the limits for longer than a
-- moment. Refuses transactions that cannot see what others took (22023).
-- Locks: the limits by id, for 0.1 s at most. Called by receive_messages.
create or replace function holdfast._message_room(
    p_queue_id int, p_queue text, p_now timestamptz,
    out room int, out next_at timestamptz, out holds boolean, out keyed boolean, out busy boolean
)
language plpgsql
set lock_timeout = '100ms'
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise invalid_parameter_value using message = format(
            'queue %s has limits: receive from it in a transaction that is read committed',
            p_queue);
    end if;
    begin
        perform from (
            select l.limit_id from holdfast.limits l
            where l.scope = 'queue' and l.name = p_queue and l.kind in ('concurrency', 'rate')
            order by l.limit_id
            for no key update
        ) as l;
    exception when lock_not_available then
        busy := true;
        return;
    end;
    -- A new snapshot sees what those took that held the locks before.
    select min(f.free), min(f.next_at), coalesce(bool_or(l.kind = 'concurrency'), false),
        coalesce(bool_or(l.key <> ''), false), false
    into room, next_at, holds, keyed, busy
    from holdfast._message_limits(p_queue) as l
    left join lateral (
        select greatest(l.most - (
            select coalesce(sum(cardinality(d.message_ids) - coalesce(cardinality(d.done), 0)), 0)
            from holdfast.deliveries d where d.queue_id = p_queue_id), 0)::int as free,
            null::timestamptz as next_at
        where l.kind = 'concurrency' and l.key = ''
        union all
        select r.free, r.next_at
        from (select where l.kind = 'rate' and l.key = '' limit 1) as u
        cross join lateral holdfast._rate_left(
            p_now, -l.limit_id, '', l.most, l.period, l.smooth) as r
    ) as f on true;
end $$;

-- Receive from a FIFO queue with limits, of which those without a key allow p_room messages. With a
-- limit by key, one message of a group is taken. See _receive_groups.
-- Locks: expects the limits locked; then as _groups_by_key and _receive_groups; rows of uses.
-- Called by receive_messages.
create or replace function holdfast._receive_limited(
    p_queue_id int, p_lock_key bigint, p_queue text, p_now timestamptz, p_limit int,
    p_until timestamptz, p_consumer text, p_per_group int, p_keeps boolean, p_joined boolean,
    p_room int, p_limited boolean, p_keyed boolean
) returns table (
    next_due_at timestamptz, newest timestamptz[], queue_id int, delivery_id uuid, group_key text,
    message_ids bigint[], attempts int[], sent_ats timestamptz[], payloads json[],
    headers json[], errors text[]
)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_per_group int := case when p_keyed then 1 else least(p_per_group, p_room) end;
    v_limit int := least(p_limit, case when p_room < v_per_group then 1
        else p_room / v_per_group end);
    v_only text[];
    v_allowed_at timestamptz;
    v_payloads json[];
begin
    if p_keyed then
        select g.groups, g.next_at into v_only, v_allowed_at
        from holdfast._groups_by_key(p_queue_id, p_queue, p_now, v_limit) as g;
        if coalesce(cardinality(v_only), 0) = 0 then
            next_due_at := least(holdfast._next_message(p_queue_id, p_now), v_allowed_at);
            return next;
            return;
        end if;
        v_limit := cardinality(v_only);
    end if;
    for next_due_at, newest, queue_id, delivery_id, group_key, message_ids, attempts, sent_ats,
        payloads, headers, errors
    in select g.* from holdfast._receive_groups(p_queue_id, p_lock_key, p_now, v_limit, p_until,
        p_consumer, '-infinity', v_per_group, p_keeps, p_joined, p_limited, v_only) as g
    loop
        v_payloads := v_payloads || payloads;
        return next;
    end loop;
    perform holdfast._count_messages(p_queue, p_now, v_payloads);
end $$;

-- Return up to p_limit groups of a FIFO queue whose first messages are due and allowed by limits
-- with a key, and when rates allow more. Groups in flight are passed over, and so are those that
-- others have: among the first 10,000 tokens. The first messages are locked, so that nobody changes
-- or cancels them before they are taken.
-- Locks: expects the limits locked; messages, skipping locked ones. Called by _receive_limited.
create or replace function holdfast._groups_by_key(
    p_queue_id int, p_queue text, p_now timestamptz, p_limit int,
    out groups text[], out next_at timestamptz
)
language plpgsql
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_size int := greatest(64, 2 * p_limit);
    v_looked int := 0;
    v_at timestamptz := '-infinity';
    v_id bigint := 0;
    v_tokens record;
    v_found record;
    v_within record;
begin
    loop
        select array_agg(t.group_key) as groups, max(t.visible_at) as at,
            (array_agg(t.token_id))[count(*)] as id, count(*)::int as count
        into v_tokens
        from (
            select t.group_key, t.visible_at, t.token_id from holdfast.group_tokens t
            where t.queue_id = p_queue_id and t.visible_at <= p_now
                and (t.visible_at, t.token_id) > (v_at, v_id)
            order by t.visible_at, t.token_id limit v_size
        ) as t;
        exit when v_tokens.count = 0;
        select array_agg(g.group_key order by g.place) as groups,
            array_agg(coalesce(m.payload, holdfast._body(p_queue_id, m.message_id))
                order by g.place) as payloads
        into v_found
        from (
            select u.group_key, min(u.place) as place
            from unnest(v_tokens.groups) with ordinality as u (group_key, place) group by 1
        ) as g
        cross join lateral (
            select m.ctid as tid from holdfast.grouped_messages m
            where m.queue_id = p_queue_id and m.group_key = g.group_key
            order by m.message_id limit 1
        ) as f
        cross join lateral (
            select m.message_id, m.payload from holdfast.grouped_messages m
            where m.ctid = f.tid and m.visible_at <= p_now
            for update skip locked
        ) as m
        where not exists (
            select from holdfast.deliveries d
            where d.queue_id = p_queue_id and d.group_key = g.group_key);
        if v_found.groups is not null then
            v_within := holdfast._within_keys(p_queue_id, p_queue, p_now,
                holdfast._message_keys(p_queue, v_found.payloads));
            next_at := least(next_at, v_within.next_at);
            groups := array(select v_found.groups[u.place]
                from unnest(v_within.places[1:p_limit]) as u (place));
        end if;
        v_looked := v_looked + v_tokens.count;
        exit when groups <> '{}' or v_tokens.count < v_size or v_looked >= 10000;
        v_at := v_tokens.at;
        v_id := v_tokens.id;
        v_size := least(4 * v_size, 4096);
    end loop;
end $$;

-- Return the payloads of what is in flight of a queue. Called by _within_keys and
-- _messages_of_limit.
create or replace function holdfast._payloads_in_flight(p_queue_id int) returns setof json
language plpgsql stable
as $$
begin
    return query
    select coalesce(m.payload, holdfast._body(p_queue_id, m.id))
    from holdfast.deliveries d
    cross join lateral unnest(d.message_ids, d.payloads) with ordinality as m (id, payload, place)
    where d.queue_id = p_queue_id and m.place <> all (coalesce(d.done, '{}'));
end $$;

-- Count what was handed out for the rates of a queue: the payloads of the messages.
-- Locks: expects the limits locked; rows of uses. Called by receive_messages and
-- _receive_limited.
create or replace function holdfast._count_messages(
    p_queue text, p_now timestamptz, p_payloads json[]
) returns void
language plpgsql
as $$
begin
    perform holdfast._add_uses(p_now, array_agg(u.limit_id), array_agg(u.slot),
        array_agg(u.period), array_agg(u.count))
    from (
        select -l.limit_id as limit_id, holdfast._slot_of(p.payload, l.key) as slot, l.period,
            count(*)::int as count
        from holdfast._message_limits(p_queue) as l
        cross join lateral (
            select unnest(p_payloads) as payload
        ) as p
        where l.kind = 'rate'
        group by 1, 2, 3
    ) as u
    having count(*) > 0;
end $$;
