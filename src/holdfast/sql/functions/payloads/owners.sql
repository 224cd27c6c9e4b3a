-- Which runs have payloads that are objects outside of the database, and which runs use them.

-- Note that runs have objects at a URL, or are about to; they need not exist yet. p_users is
-- parallel to p_owners: the run that refers to the owner's objects, null if it is the owner.
-- An owner without a run and without users is looked at after a day. Returns the owners whose
-- objects from before are being deleted: for these nothing is noted, the caller tries again.
--
-- Refuses nulls (22004) and arrays of different lengths (22023).
-- Locks: rows of payload_owners, by owner; of payload_users. Called by workers and clients.
create or replace function holdfast.own_payloads(p_url text, p_owners uuid[], p_users uuid[])
returns uuid[]
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_refused uuid[];
begin
    perform holdfast._check_given('the URL of objects', p_url is not null);
    perform holdfast._check_given(
        'an owner of objects', array_position(p_owners, null) is null and p_owners is not null);
    if cardinality(p_users) is distinct from cardinality(p_owners) then
        raise invalid_parameter_value using message = 'each owner of objects has one user or null';
    end if;
    insert into holdfast.payload_owners as o (owner, url, noted_at, due_at)
    select distinct u.owner, p_url, v_now, v_now + interval '1 day'
    from unnest(p_owners) as u (owner)
    order by u.owner
    on conflict (owner, url) do update
    set noted_at = excluded.noted_at, due_at = greatest(o.due_at, excluded.due_at),
        removed_until = null
    where o.removed_until is null or o.removed_until <= v_now;
    v_refused := array(
        select u.owner
        from (select distinct u.owner from unnest(p_owners) as u (owner)) as u
        cross join lateral (
            select o.removed_until from holdfast.payload_owners o
            where o.owner = u.owner and o.url = p_url limit 1
        ) as o
        where o.removed_until > v_now);
    insert into holdfast.payload_users (run_id, owner)
    select distinct u.run_id, u.owner
    from unnest(p_owners, p_users) as u (owner, run_id)
    where u.run_id <> u.owner and u.owner <> all (v_refused)
    order by u.run_id, u.owner
    on conflict do nothing;
    return v_refused;
end $$;

-- Return true if a value has a reference to an object in it. Called by all that pass values from
-- one run to another, and by _use_payloads.
create or replace function holdfast._refers(p_value json) returns boolean
language sql immutable
return strpos(p_value::text, '"holdfast:codec":"object/1"') > 0;

-- Note that a run uses the objects that values refer to: they come from other runs.
-- Locks: rows of payload_users; expects that the runs which own the objects, or use them, cannot be
-- deleted meanwhile. Called by _tell_parents, _start_child_steps,
-- _merge_debounced and signal_runs.
create or replace function holdfast._use_payloads(p_run_id uuid, p_values json[]) returns void
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    insert into holdfast.payload_users (run_id, owner)
    select distinct p_run_id, f.found[1]::uuid
    from unnest(p_values) as v (value)
    cross join lateral regexp_matches(v.value::text,
        '"holdfast:codec":"object/1","data":"[^"]*/payloads/([0-9a-f-]{36})/', 'g') as f (found)
    where holdfast._refers(v.value) and f.found[1]::uuid <> p_run_id
    order by 2
    on conflict do nothing;
end $$;

-- Note that a run uses all objects that another one has or uses, whose log it begins with.
-- Locks: rows of payload_users; expects the row of the other run locked. Called by fork_run,
-- _copy_attempts and _continue_flow.
create or replace function holdfast._share_payloads(p_run_id uuid, p_new_run_id uuid) returns void
language plpgsql
as $$
begin
    insert into holdfast.payload_users (run_id, owner)
    select p_new_run_id, s.owner
    from (
        select u.owner from holdfast.payload_users u where u.run_id = p_run_id
        union
        select o.owner from holdfast.payload_owners o where o.owner = p_run_id
    ) as s
    where s.owner <> p_new_run_id
    order by s.owner
    on conflict do nothing;
end $$;
