-- Deliveries to URLs. Each is a row until it has been delivered: due at a moment, taken by a worker
-- for a time, and dead after five attempts that failed.

-- Return how long to wait after a failed attempt: 10, 30, 60, then 300 s. Called by end_deliveries.
create or replace function holdfast._delivery_pause(p_attempts int) returns interval
language sql immutable parallel safe
return case p_attempts when 1 then interval '10 seconds' when 2 then interval '30 seconds'
    when 3 then interval '60 seconds' else interval '300 seconds' end;

-- Take deliveries that are due, for p_lease_seconds: then other workers may take them again. A
-- target that hangs must not hold up the others: p_busy has a subscription once for each request
-- that is under way, at most p_each of one are under way with what is taken, and subscriptions with
-- few come first. One whose fifth attempt was lost with its worker is dead. `attempt` is the number
-- of the attempt that begins: the worker gives it back with what came of it.
-- Locks: deliveries, skipping what others hold. Called by workers.
create or replace function holdfast.claim_deliveries(
    p_limit int, p_each int default 10, p_busy bigint[] default '{}',
    p_lease_seconds float8 default 60
) returns table (
    delivery_id bigint, attempt int, subscription_id bigint, event_id text, topic text,
    payload json, published_at bigint, url text, secret text, allow_inner boolean
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    perform holdfast._check_seconds('a lease', p_lease_seconds);
    if not exists (
        select from holdfast.http_deliveries d
        where d.dead_at is null and d.visible_at <= v_now limit 1)
    then
        return;
    end if;
    return query
    with due as materialized (
        select d.delivery_id, d.attempts
        from (
            select s.subscription_id, p_each - coalesce(b.under_way, 0) as room
            from holdfast.subscriptions s
            left join (
                select b.id, count(*) as under_way from unnest(p_busy) as b (id) group by b.id
            ) as b on b.id = s.subscription_id
            where s.kind = 'url' and coalesce(b.under_way, 0) < p_each
            order by coalesce(b.under_way, 0), s.subscription_id
        ) as s
        cross join lateral (
            select d.delivery_id, d.attempts from holdfast.http_deliveries d
            where d.subscription_id = s.subscription_id and d.dead_at is null
                and d.visible_at <= v_now
            order by d.visible_at limit s.room for update skip locked
        ) as d
        limit holdfast._limit(p_limit)
    ), taken as (
        update holdfast.http_deliveries d
        set attempts = d.attempts + case when u.attempts < 5 then 1 else 0 end,
            visible_at = case when u.attempts < 5
                then v_now + p_lease_seconds * interval '1 second' else 'infinity' end,
            dead_at = case when u.attempts >= 5 then v_now end,
            error = case when u.attempts >= 5 then 'the worker was lost' else d.error end
        from due u where d.delivery_id = u.delivery_id
        returning d.*
    )
    select t.delivery_id, t.attempts::int, t.subscription_id, t.event_id, t.topic, t.payload,
        holdfast._micros(t.published_at), s.target, s.secret, s.allow_inner
    from taken t
    cross join lateral (
        select s.* from holdfast.subscriptions s
        where s.subscription_id = t.subscription_id limit 1
    ) as s
    where t.dead_at is null;
end $$;

-- Say what came of attempts; the arrays are parallel. Without an error the event is delivered, and
-- the row is deleted. With one, it is tried again after 10, 30, 60 and 300 s, and not before the
-- seconds of p_retry_after, which the target asked for, are over; after the fifth
-- attempt it is dead, and stays until it is redriven or discarded. p_attempts are the numbers that
-- claim_deliveries gave: an attempt after which another has begun changes nothing. Returns how many
-- deliveries are dead now.
-- Locks: the deliveries, by id. Called by workers.
create or replace function holdfast.end_deliveries(
    p_delivery_ids bigint[], p_attempts int[], p_statuses int[], p_errors text[],
    p_retry_after float8[] default null
) returns int
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_ended record;
    v_dead int;
begin
    select array_agg(u.delivery_id) as ids, array_agg(u.status) as statuses,
        array_agg(left(u.error, 2000)) as errors, array_agg(u.retry_after) as pauses
    into v_ended
    from (
        select u.delivery_id, u.attempt, u.status, u.error, u.retry_after
        from unnest(p_delivery_ids, p_attempts, p_statuses, p_errors, p_retry_after)
            as u (delivery_id, attempt, status, error, retry_after)
        order by u.delivery_id
    ) as u
    cross join lateral (
        select d.attempts from holdfast.http_deliveries d
        where d.delivery_id = u.delivery_id and d.dead_at is null for update
    ) as d
    where d.attempts = u.attempt;
    delete from holdfast.http_deliveries d
    using unnest(v_ended.ids, v_ended.errors) as u (delivery_id, error)
    where d.delivery_id = u.delivery_id and u.error is null;
    with failed as (
        update holdfast.http_deliveries d
        set status = u.status, error = u.error,
            dead_at = case when d.attempts >= 5 then v_now end,
            visible_at = case when d.attempts >= 5 then 'infinity'
                else v_now + greatest(holdfast._delivery_pause(d.attempts),
                    u.pause * interval '1 second') end
        from unnest(v_ended.ids, v_ended.statuses, v_ended.errors, v_ended.pauses)
            as u (delivery_id, status, error, pause)
        where d.delivery_id = u.delivery_id and u.error is not null
        returning d.dead_at
    )
    select count(f.dead_at) into v_dead from failed f;
    return v_dead;
end $$;

-- Return when the next delivery is due, in microseconds; null for never. Locks nothing. Called by
-- workers.
create or replace function holdfast.next_delivery_at() returns bigint
language sql stable
as $$
    select holdfast._micros((
        select d.visible_at from holdfast.http_deliveries d where d.dead_at is null
        order by d.visible_at limit 1))
$$;

-- List deliveries, oldest first: those that are dead, those that are not, or all (p_dead null); of
-- a subscription, or of all. p_after is the id after which the list begins. Locks nothing. Called
-- by clients.
create or replace function holdfast.list_deliveries(
    p_dead boolean default null, p_subscription_id bigint default null, p_after bigint default 0,
    p_limit int default 100
) returns table (
    delivery_id bigint, subscription_id bigint, event_id text, topic text, payload json,
    published_at bigint, attempts int, due_at bigint, status int, error text, dead_at bigint,
    url text
)
language plpgsql stable
reset enable_seqscan
set plan_cache_mode = force_custom_plan
as $$
begin
    return query
    select d.delivery_id, d.subscription_id, d.event_id, d.topic, d.payload,
        holdfast._micros(d.published_at), d.attempts::int, holdfast._micros(d.visible_at),
        d.status, d.error, holdfast._micros(d.dead_at), s.target
    from holdfast.http_deliveries d
    left join holdfast.subscriptions s on s.subscription_id = d.subscription_id
    where d.delivery_id > p_after
        and (p_dead is null or (d.dead_at is not null) = p_dead)
        and (p_subscription_id is null or d.subscription_id = p_subscription_id)
    order by d.delivery_id
    limit holdfast._limit(p_limit);
end $$;

-- Deliver dead deliveries again: these, or with null all that are dead. They start again, with five
-- attempts. Returns how many there were, and (topic, payload) notices.
-- Locks: the deliveries. Called by clients and users.
create or replace function holdfast.redrive_deliveries(
    p_delivery_ids bigint[] default null, out redriven int, out notices text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    update holdfast.http_deliveries d
    set attempts = 0, dead_at = null, visible_at = holdfast.now()
    where d.dead_at is not null
        and (p_delivery_ids is null or d.delivery_id = any (p_delivery_ids));
    get diagnostics redriven = row_count;
    if redriven > 0 then
        notices := array[array['deliveries', '']];
    end if;
end $$;

-- Delete dead deliveries: these, or with null all that are dead. Returns how many. Locks: the
-- deliveries. Called by clients and users.
create or replace function holdfast.discard_deliveries(p_delivery_ids bigint[] default null)
returns int
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_gone int;
begin
    delete from holdfast.http_deliveries d
    where d.dead_at is not null
        and (p_delivery_ids is null or d.delivery_id = any (p_delivery_ids));
    get diagnostics v_gone = row_count;
    return v_gone;
end $$;
