-- Singletons: one active run for each key.
--
-- The row of start_keys has the active run. It is written by the start, follows a run that
-- continues as new, and is deleted or given to the next run in the transaction that ends the run.
-- An end never waits for this row: if a start has locked it, the end writes freed_singletons.

-- Take a singleton's key for a run, if it is free. `is_new` is true if it was. Else `other` is the
-- active run, or the first of those that wait for it. Refuses nothing.
-- Locks: the key's row. Called by _start_ruled.
create or replace function holdfast._take_singleton(
    p_name text, p_key text, p_run_id uuid,
    out other uuid, out is_new boolean, out count bigint
)
language plpgsql
as $$
begin
    select k.run_id, k.is_new, k.count into other, is_new, count
    from holdfast._lock_start_key('singleton', p_name, p_key, p_run_id) as k;
    if is_new then
        other := null;
        return;
    end if;
    -- A statement later: an end that committed while this waited for the row is seen.
    if (select r.status from holdfast.runs r where r.run_id = other) = 'running' then
        return;
    end if;
    other := (
        select w.run_id from holdfast.singleton_waits w
        where w.name = p_name and w.key = p_key
            and (select r.status from holdfast.runs r where r.run_id = w.run_id) = 'running'
        order by w.place limit 1);
    if other is null then
        update holdfast.start_keys k set run_id = p_run_id
        where k.rule = 'singleton' and k.name = p_name and k.key = p_key;
        is_new := true;
    end if;
end $$;

-- Give up a key that was taken for a run which is not started after all.
-- Locks: expects the key's row locked. Called by _start_ruled.
create or replace function holdfast._drop_singleton(p_name text, p_key text) returns void
language sql
as $$
    delete from holdfast.start_keys k
    where k.rule = 'singleton' and k.name = p_name and k.key = p_key
$$;

-- Let a run wait until the runs with its key that were started before it have ended.
-- Locks: expects the key's row locked. Called by _start_ruled.
create or replace function holdfast._join_singleton(
    p_name text, p_key text, p_run_id uuid, p_visible_at timestamptz, p_timeout float8
) returns void
language plpgsql
as $$
declare
    v_place bigint;
begin
    update holdfast.start_keys k set count = k.count + 1
    where k.rule = 'singleton' and k.name = p_name and k.key = p_key
    returning k.count into v_place;
    insert into holdfast.singleton_waits (name, key, place, run_id, visible_at, timeout)
    values (p_name, p_key, v_place, p_run_id, p_visible_at, p_timeout * interval '1 second');
end $$;

-- Free the keys of runs that have ended, and let the next runs begin. The arrays are parallel. What
-- is locked by another transaction is left to free_singletons. Returns (topic, payload) notices.
-- Locks: expects the turn rows of the runs locked; rows of start_keys by (name, key) and turn rows,
-- waiting for none; runs that begin. Called by _end_runs, _end_run and free_singletons.
create or replace function holdfast._free_singletons(
    p_now timestamptz, p_run_ids uuid[], p_names text[], p_keys text[]
) returns text[]
language plpgsql
as $$
declare
    v_each record;
    v_active uuid;
    v_notices text[];
begin
    for v_each in
        select u.* from unnest(p_run_ids, p_names, p_keys) as u (run_id, name, key)
        order by u.name, u.key
    loop
        select k.run_id into v_active from holdfast.start_keys k
        where k.rule = 'singleton' and k.name = v_each.name and k.key = v_each.key
        for update skip locked;
        if not found and exists (
            select from holdfast.start_keys k
            where k.rule = 'singleton' and k.name = v_each.name and k.key = v_each.key)
        then  -- it is locked
            insert into holdfast.freed_singletons (run_id, name, key)
            values (v_each.run_id, v_each.name, v_each.key)
            on conflict do nothing;
            continue;
        end if;
        delete from holdfast.singleton_waits w where w.run_id = v_each.run_id;
        if v_active = v_each.run_id then
            v_notices := v_notices
                || holdfast._begin_next(p_now, v_each.run_id, v_each.name, v_each.key);
        end if;
    end loop;
    return v_notices;
end $$;

-- Let the first run that waits for a key begin, or delete the key's row. If another transaction has
-- locked that run's turn, this is left to free_singletons. Returns (topic, payload) notices.
-- Locks: expects the key's row locked; a turn row, without waiting; the run. Called by
-- _free_singletons.
create or replace function holdfast._begin_next(
    p_now timestamptz, p_ended uuid, p_name text, p_key text
) returns text[]
language plpgsql
as $$
declare
    v_next record;
    v_queue text;
begin
    for v_next in
        select w.* from holdfast.singleton_waits w
        where w.name = p_name and w.key = p_key
        order by w.place
    loop
        perform from holdfast.tasks t
        where t.run_id = v_next.run_id and t.key = '' for update skip locked;
        if not found then
            if (
                select r.status from holdfast.runs r where r.run_id = v_next.run_id) = 'running'
            then
                insert into holdfast.freed_singletons (run_id, name, key)
                values (p_ended, p_name, p_key)
                on conflict do nothing;
                return null;
            end if;
            delete from holdfast.singleton_waits w where w.run_id = v_next.run_id;
            continue;  -- it ended while it waited
        end if;
        delete from holdfast.singleton_waits w where w.run_id = v_next.run_id;
        update holdfast.start_keys k set run_id = v_next.run_id
        where k.rule = 'singleton' and k.name = p_name and k.key = p_key;
        update holdfast.tasks t
        set visible_at = greatest(p_now, v_next.visible_at), awaiting = null
        where t.run_id = v_next.run_id and t.key = ''
        returning t.queue into v_queue;
        if v_next.timeout is not null then
            update holdfast.runs r
            set deadline_at = greatest(p_now, v_next.visible_at) + v_next.timeout
            where r.run_id = v_next.run_id;
        end if;
        return array[array['work', v_queue]];
    end loop;
    delete from holdfast.start_keys k
    where k.rule = 'singleton' and k.name = p_name and k.key = p_key;
    return null;
end $$;

-- Free the keys of at most p_limit runs that ended while another transaction had locked a row that
-- was needed. Returns the number of rows that were looked at, and (topic, payload) notices.
-- Locks: rows of freed_singletons, skipping locked ones; then as _free_singletons. Called by
-- maintenance.
create or replace function holdfast.free_singletons(
    p_limit int default 1000, out count int, out notices text[]
)
language plpgsql
as $$
declare
    v_run_ids uuid[];
    v_names text[];
    v_keys text[];
begin
    perform holdfast._limit(p_limit);
    with freed as (
        delete from holdfast.freed_singletons f where f.ctid = any (array(
            select o.ctid from holdfast.freed_singletons o limit p_limit for update skip locked))
        returning f.*
    )
    select array_agg(f.run_id), array_agg(f.name), array_agg(f.key)
    into v_run_ids, v_names, v_keys
    from freed f;
    count := coalesce(cardinality(v_run_ids), 0);
    if count > 0 then
        notices := holdfast._free_singletons(holdfast.now(), v_run_ids, v_names, v_keys);
    end if;
end $$;
