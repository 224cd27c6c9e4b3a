-- Objects that nobody needs any more: they are deleted after the commit that deleted their run.

-- Let the objects be looked at that deleted runs had or used: an hour after the last one was put,
-- because a start of a run with the same key may just have put one.
-- Locks: rows of payload_owners, by owner; expects the rows of the runs locked. Called by
-- _delete_runs, which deletes the rows of payload_users then.
create or replace function holdfast._leave_payloads(p_run_ids uuid[]) returns void
language plpgsql
as $$
declare
    v_owners uuid[] := p_run_ids || array(
        select u.owner from holdfast.payload_users u where u.run_id = any (p_run_ids));
begin
    perform from (
        select distinct u.owner from unnest(v_owners) as u (owner) order by u.owner
    ) as u
    cross join lateral (
        select from holdfast.payload_owners o where o.owner = u.owner order by o.url for update
    ) as o;
    update holdfast.payload_owners o set due_at = o.noted_at + interval '1 hour'
    where o.owner = any (v_owners) and o.removed_until is null;
end $$;

-- Choose owners whose objects nobody needs: neither the run is there nor one that uses them. They
-- are left to the caller for p_lease_seconds: it deletes all their objects at the URL, and then
-- calls forget_payloads. Those that are needed are looked at again when a run of them is deleted.
--
-- Refuses a negative limit and a length of time that is not allowed (22023), and nulls (22004).
-- Locks: rows of payload_owners, skipping what others hold. Called by workers.
create or replace function holdfast.due_payloads(
    p_limit int default 100, p_lease_seconds float8 default 600
) returns table (owner uuid, url text)
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := holdfast.now();
    v_owners uuid[];
    v_urls text[];
begin
    perform holdfast._check_given('the length of a lease', p_lease_seconds is not null);
    perform holdfast._check_seconds('a lease', p_lease_seconds);
    select array_agg(d.owner), array_agg(d.url) into v_owners, v_urls
    from (
        select o.owner, o.url from holdfast.payload_owners o
        where o.due_at <= v_now
        order by o.due_at limit holdfast._limit(p_limit) for update skip locked
    ) as d;
    return query
    with looked as materialized (
        select d.owner, d.url, holdfast._has_run(d.owner) or exists (
            select from holdfast.payload_users u where u.owner = d.owner) as is_needed
        from unnest(v_owners, v_urls) as d (owner, url)
    ), moved as (
        update holdfast.payload_owners o
        set due_at = case when not l.is_needed then v_now + p_lease_seconds * interval '1 s' end,
            removed_until =
                case when not l.is_needed then v_now + p_lease_seconds * interval '1 s' end
        from looked l
        where o.owner = l.owner and o.url = l.url
    )
    select l.owner, l.url from looked l where not l.is_needed;
end $$;

-- Forget owners whose objects are deleted, unless new ones were noted meanwhile. Refuses nulls
-- (22004). Locks: rows of payload_owners. Called by workers.
create or replace function holdfast.forget_payloads(p_owners uuid[], p_urls text[]) returns void
language plpgsql
as $$
begin
    perform holdfast._check_given('owners of objects', p_owners is not null);
    perform holdfast._check_given('the URLs of objects', p_urls is not null);
    delete from holdfast.payload_owners o
    using unnest(p_owners, p_urls) as u (owner, url)
    where o.owner = u.owner and o.url = u.url and o.removed_until is not null;
end $$;
