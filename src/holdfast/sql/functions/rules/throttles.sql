-- Throttles: at most so many starts of a key within each period.
--
-- Starts of a key are numbered, and each has a slot: the moment at which its run may begin. A slot
-- is at least one period after the slot that is `throttle_limit` places before it. So no period,
-- from whatever moment on, has more slots. Rules may change from one start to the next: besides the
-- last `throttle_limit` slots, those of the longest period are kept that rules of the key had.
-- Where excess is refused no slot lies ahead: one that does was taken before the clock went back,
-- and counts no more.

-- Return the next slot of a key that has had p_count starts. Without starts that had begun later,
-- and were first, it would be `allowed_at`: where this is later than now, excess is refused.
-- Locks nothing. Called by _take_slot and list_start_keys.
create or replace function holdfast._next_slot(
    p_limit int, p_period interval, p_excess text, p_now timestamptz, p_name text, p_key text,
    p_count bigint, out at timestamptz, out allowed_at timestamptz
)
language plpgsql stable
as $$
declare
    v_latest timestamptz := case when p_excess = 'refuse'
        then p_now + interval '10 seconds' else 'infinity' end;
begin
    allowed_at := greatest(p_now, (
        select s.at + p_period from holdfast.throttle_slots s
        where s.name = p_name and s.key = p_key and s.place = p_count + 1 - p_limit
            and s.at <= v_latest));
    at := greatest(allowed_at, (
        select s.at from holdfast.throttle_slots s
        where s.name = p_name and s.key = p_key and s.place = p_count and s.at <= v_latest));
end $$;

-- Take the next slot of a key. If it is later than now and the rules refuse excess, nothing is
-- taken, and `refused` is true. Locks: the key's row. Called by _start_ruled.
create or replace function holdfast._take_slot(
    p_rules holdfast.start_rules, p_now timestamptz, p_name text, p_key text,
    out at timestamptz, out refused boolean
)
language plpgsql
as $$
declare
    v_period interval := p_rules.throttle_period_seconds * interval '1 second';
    v_count bigint;
    v_allowed_at timestamptz;
    v_longest interval;
begin
    select k.count into v_count
    from holdfast._lock_start_key('throttle', p_name, p_key, null) as k;
    select s.at, s.allowed_at into at, v_allowed_at
    from holdfast._next_slot(p_rules.throttle_limit, v_period, p_rules.throttle_excess, p_now,
        p_name, p_key, v_count) as s;
    refused := v_allowed_at > p_now and p_rules.throttle_excess = 'refuse';
    if refused then
        at := v_allowed_at;
        return;
    end if;
    insert into holdfast.throttle_slots (name, key, place, at)
    values (p_name, p_key, v_count + 1, at);
    update holdfast.start_keys k
    set count = v_count + 1, period = greatest(k.period, v_period),
        expires_at = greatest(k.expires_at, at + v_period)
    where k.rule = 'throttle' and k.name = p_name and k.key = p_key
    returning k.period into v_longest;
    delete from holdfast.throttle_slots s where s.ctid = any (array(
        select o.ctid from (
            select o.ctid, o.at from holdfast.throttle_slots o
            where o.name = p_name and o.key = p_key
                and o.place <= v_count + 1 - p_rules.throttle_limit
            order by o.place limit 10  -- more than a start adds, and few if many lie ahead
        ) as o
        where o.at <= p_now - v_longest));
end $$;

-- Delete keys of debounces and throttles that have no meaning any more, at most p_limit. Returns
-- how many. Refuses a negative limit (22023).
-- Locks: rows of start_keys, skipping locked ones. Called by maintenance.
create or replace function holdfast.expire_start_keys(p_limit int default 1000) returns int
language plpgsql
as $$
declare
    v_count int;
begin
    perform holdfast._limit(p_limit);
    with expired as (
        delete from holdfast.start_keys k where k.ctid = any (array(
            select o.ctid from holdfast.start_keys o
            where o.expires_at < holdfast.now()
            order by o.expires_at limit p_limit for update skip locked))
        returning k.rule, k.name, k.key
    ), slots as (
        delete from holdfast.throttle_slots s
        using expired e
        where e.rule = 'throttle' and s.name = e.name and s.key = e.key
    )
    select count(*) into v_count from expired;
    return v_count;
end $$;
