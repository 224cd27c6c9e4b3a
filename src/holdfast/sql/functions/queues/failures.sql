-- The errors of messages: what each receive that failed has left.

-- Keep the errors of messages that are given back, of each the newest 20, of each 2,000 characters.
-- Receives that do not count have not failed.
-- Locks: expects the deliveries locked. Called by return_messages.
create or replace function holdfast._keep_failures(
    p_queue_ids int[], p_delivery_ids uuid[], p_places int[], p_errors text[], p_counted boolean[]
) returns void
language plpgsql
set enable_bitmapscan = off
as $$
begin
    with added as (
        insert into holdfast.message_failures (message_id, number, failed_at, error)
        select d.message_ids[m.place], coalesce(f.number, 0) + 1, holdfast.now(),
            left(u.error, 2000)
        from unnest(p_queue_ids, p_delivery_ids, p_places, p_errors, p_counted) with ordinality
            as u (queue_id, delivery_id, place, error, counted, ord)
        cross join lateral (
            select d.message_ids, d.done from holdfast.deliveries d
            where d.queue_id = u.queue_id and d.delivery_id = u.delivery_id limit 1
        ) as d
        cross join lateral generate_series(greatest(u.place, 1),
            least(u.place, cardinality(d.message_ids))) as m (place)
        left join lateral (
            select f.number from holdfast.message_failures f
            where f.message_id = d.message_ids[m.place]
            order by f.number desc limit 1
        ) as f on true
        where u.error is not null and u.counted is not false
            and m.place <> all (coalesce(d.done, '{}'))
        order by u.ord
        on conflict do nothing
        returning message_id, number
    )
    delete from holdfast.message_failures f using added a
    where f.message_id = a.message_id and f.number <= a.number - 20;
end $$;

-- Delete the errors of messages that are gone. Called by _after_ack, _empty_queue, ack_messages,
-- cancel_message and return_messages.
create or replace function holdfast._drop_failures(p_message_ids bigint[]) returns void
language plpgsql
as $$
begin
    delete from holdfast.message_failures f where f.message_id = any (p_message_ids);
end $$;

-- Return the errors of messages that wait or are in flight: of each the newest, in the order in
-- which its receives failed. Locks nothing. Called by users and clients.
create or replace function holdfast.message_failures(p_message_ids bigint[])
returns table (message_id bigint, failed_at bigint, error text)
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    return query
    select f.message_id, holdfast._micros(f.failed_at), f.error
    from holdfast.message_failures f
    where f.message_id = any (p_message_ids)
    order by f.message_id, f.number;
end $$;
