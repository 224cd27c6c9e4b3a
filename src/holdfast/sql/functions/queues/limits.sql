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
