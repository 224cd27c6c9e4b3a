-- Throttles: at most so many starts of a key within each period.
--
-- Starts of a key are numbered, and each has a slot: the moment at which its run may begin. A slot
-- is at least one period after the slot that is `throttle_limit` places before it. So no period,
-- from whatever moment on, has more slots. Where excess is refused no slot lies ahead: one that
-- does was taken before the clock went back, and counts no more.

-- Take the next slot of a key. If it is later than now and the rules refuse excess, nothing is
-- taken, and `refused` is true. Locks: the key's row. Called by _start_ruled.
create or replace function holdfast._take_slot(
    p_rules holdfast.start_rules, p_now timestamptz, p_name text, p_key text,
    out at timestamptz, out refused boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_period interval := p_rules.throttle_period_seconds * interval '1 second';
    v_latest timestamptz := case when p_rules.throttle_excess = 'refuse'
        then p_now + interval '10 seconds' else 'infinity' end;
    v_place bigint;
begin
    select k.count + 1 into v_place
    from holdfast._lock_start_key('throttle', p_name, p_key, null) as k;
    at := greatest(p_now, (
        select s.at + v_period from holdfast.throttle_slots s
        where s.name = p_name and s.key = p_key and s.place = v_place - p_rules.throttle_limit
            and s.at <= v_latest));
    refused := at > p_now and p_rules.throttle_excess = 'refuse';
    if refused then
        return;
    end if;
    at := greatest(at, (  -- of a transaction that began later, and was first
        select s.at from holdfast.throttle_slots s
        where s.name = p_name and s.key = p_key and s.place = v_place - 1 and s.at <= v_latest));
    insert into holdfast.throttle_slots (name, key, place, at)
    values (p_name, p_key, v_place, at);
    delete from holdfast.throttle_slots s
    where s.name = p_name and s.key = p_key and s.place <= v_place - p_rules.throttle_limit;
    update holdfast.start_keys k set count = v_place, expires_at = at + v_period
    where k.rule = 'throttle' and k.name = p_name and k.key = p_key;
end $$;

-- Delete keys of debounces and throttles that have no meaning any more, at most p_limit. Returns
-- how many. Refuses a negative limit (22023).
-- Locks: rows of start_keys, skipping locked ones. Called by maintenance.
create or replace function holdfast.expire_start_keys(p_limit int default 1000) returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
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
