-- Which limits concern a task, and the values of their keys, which are those of _key_of.

-- Return true if a limit concerns the tasks of a queue and a handler. Called by all that look for
-- limits.
create or replace function holdfast._concerns(
    p_scope text, p_name text, p_queue text, p_handler text
) returns boolean
language sql immutable parallel safe
return case p_scope when 'queue' then p_name = p_queue
    when 'activity' then p_handler = p_name || '@0'
    else p_handler not like '%@0' and p_name = regexp_replace(p_handler, '@[^@]*$', '') end;

-- Return the value that the key of a limit has in an input; '' for a limit without a key.
create or replace function holdfast._slot_of(p_input json, p_limit_key text) returns text
language sql stable
return case p_limit_key when '' then '' else holdfast._key_of(p_input, p_limit_key) end;

-- Return how many units a task uses of a limit of the kind units: the number that its input has at
-- a path, or that its call has said (p_units 'call'), rounded up. It is 1 at least, also without
-- such a number, and no more than all that the limit has: else the task could never begin. Called
-- by all that count units.
create or replace function holdfast._units_of(
    p_units text, p_most int, p_run_id uuid, p_handler text, p_payload json
) returns int
language plpgsql stable
as $$
declare
    v_text text := case
        when p_units = 'call' then p_payload ->> 'units'
        when p_handler like '%@0' then holdfast._key_of(p_payload -> 'input', p_units)
        else holdfast._key_of(
            (select r.input from holdfast.runs r where r.run_id = p_run_id), p_units) end;
begin
    return case when octet_length(v_text) <= 100
        and v_text ~ '^[0-9]+([.][0-9]+)?([eE][+]?[0-9]{1,2})?$'
        then least(greatest(ceil(v_text::numeric), 1), p_most) else 1 end;
end $$;

-- Return true if a run holds a place of a limit. Locks nothing. Called by _limit_keys and
-- _place_notices.
create or replace function holdfast._holds(p_run_id uuid, p_limit_id int, p_slot text)
returns boolean
language sql stable
return exists (
    select from holdfast.limit_holders h
    where h.limit_id = p_limit_id and h.slot = p_slot and h.run_id = p_run_id and h.key = '');

-- Give the runs that continue others the places that these hold, of limits that are held by runs.
-- If the new input has another value for the key of a limit, the place becomes free, and the new
-- run waits for one of its own. So does it if the limit is new. Limits are not locked: who counts
-- the holders sees the run that ended with its place, or the next one with it.
-- Locks: expects the turn rows locked; rows of holders. Called by _continue_runs.
create or replace function holdfast._pass_places(p_run_ids uuid[], p_details json[]) returns void
language sql
set enable_seqscan = off
as $$
    update holdfast.limit_holders h set run_id = (u.details ->> 'run_id')::uuid
    from unnest(p_run_ids, p_details) as u (run_id, details)
    cross join lateral (
        select r.name, r.version, r.queue, r.input from holdfast.runs r
        where r.run_id = u.run_id limit 1
    ) as r
    cross join lateral (
        select l.limit_id,
            holdfast._slot_of(case when u.details -> 'attempt' is null
                then coalesce(u.details -> 'input', 'null') else r.input end, l.key) as slot
        from holdfast.limits l
        where l.holds = 'run'
            and holdfast._concerns(l.scope, l.name, r.queue, r.name || '@' || r.version)
        offset 0
    ) as l
    where h.limit_id = l.limit_id and h.slot = l.slot and h.run_id = u.run_id and h.key = ''
$$;

-- Return the limits that a task must wait for, with the values of their keys:
-- {"limit_id": "value"}; null if it need not wait. A limit that is held by runs, and a rate, let a
-- run pass once: when it begins. A run that continues another one may hold limits before it begins:
-- they are looked for if p_run_id is given. Locks nothing. Called by all that let tasks wait for
-- limits.
create or replace function holdfast._limit_keys(
    p_queue text, p_handler text, p_key text, p_lease_no int, p_input json,
    p_run_id uuid default null
) returns text
language plpgsql stable
reset enable_seqscan
as $$
begin
    return jsonb_object_agg(l.limit_id, holdfast._slot_of(p_input, l.key))::text
    from holdfast.limits l
    where holdfast._concerns(l.scope, l.name, p_queue, p_handler) and not l.removed
        and case when l.holds = 'run' then p_key = '' and p_lease_no = 0
                and (p_run_id is null or not holdfast._holds(p_run_id, l.limit_id,
                    holdfast._slot_of(p_input, l.key)))
            when l.kind in ('rate', 'units') then p_key <> '' or p_lease_no = 0
            else true end;
end $$;

-- Return the limits with the values of their keys for a task that is stored. Called by
-- _file_limited and _refile_groups.
create or replace function holdfast._limit_keys_of(
    p_run_id uuid, p_queue text, p_handler text, p_key text, p_lease_no int, p_payload json
) returns text
language plpgsql stable
as $$
begin
    return holdfast._limit_keys(p_queue, p_handler, p_key, p_lease_no,
        case when p_handler like '%@0' then p_payload -> 'input'
            else (select r.input from holdfast.runs r where r.run_id = p_run_id) end,
        case when p_key = '' then p_run_id end);
end $$;

-- Among tasks that are due and locked, let those wait that limits concern. Returns the others, in
-- the order given; `filed` counts those that wait. Expired leases are left as they are: their tasks
-- count for their limits already.
-- Locks: expects the task rows locked. Called by _apply_limits.
create or replace function holdfast._file_limited(
    inout run_ids uuid[], inout keys text[], out filed int
)
language plpgsql
as $$
begin
    with due as materialized (
        select u.run_id, u.key, u.place, t.tid, case when t.worker is null
            then holdfast._limit_keys_of(
                t.run_id, t.queue, t.handler, t.key, t.lease_no, t.payload) end as limit_keys
        from unnest(_file_limited.run_ids, _file_limited.keys) with ordinality
            as u (run_id, key, place)
        cross join lateral (
            select t.*, t.ctid as tid from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.key limit 1
        ) as t
    ), waiting as (
        update holdfast.tasks t
        set limit_keys = d.limit_keys, limited_at = coalesce(t.limited_at, t.visible_at),
            visible_at = 'infinity'
        from due d
        where t.ctid = d.tid and d.limit_keys is not null
    )
    select array_agg(d.run_id order by d.place) filter (where d.limit_keys is null),
        array_agg(d.key order by d.place) filter (where d.limit_keys is null),
        count(d.limit_keys)
    into run_ids, keys, filed
    from due d;
end $$;

-- Give tasks of groups their present limits, if limits were added, or something else holds them,
-- after they began to wait: of each group of which a claim of p_limit tasks may choose such a task,
-- at most 1,000 a call. p_heads says since when the first task of a group waits. Tasks of one group
-- may need other limits from now on: a run that has begun, or has a place, needs fewer. One that
-- needs none is in the group {} from then on, which is free. Returns true if a task needed it.
-- Locks: task rows, skipping locked ones. Called by _take_limited, which has the limits locked.
create or replace function holdfast._refile_groups(
    p_queues text[], p_handlers text[], p_priorities int[], p_groups text[],
    p_heads timestamptz[], p_added_at timestamptz, p_limit int
) returns boolean
language plpgsql
as $$
declare
    v_changed int;
begin
    with old as materialized (
        select u.*, array(
            select l.limit_id from holdfast.limits l
            where holdfast._concerns(l.scope, l.name, u.queue, u.handler) and not l.removed
                and l.added_at >= u.head_at
        ) as limits
        from unnest(p_queues, p_handlers, p_priorities, p_groups, p_heads)
            as u (queue, handler, priority, limit_keys, head_at)
        where u.head_at <= p_added_at
    ), stale as materialized (
        select u.* from old u
        where exists (
            select from (
                select t.* from holdfast.tasks t
                where t.queue = u.queue and t.handler = u.handler and t.priority = u.priority
                    and t.limit_keys = u.limit_keys and t.limited_at is not null and not t.paused
                order by t.limited_at limit 1 + 2 * p_limit
            ) as t
            where holdfast._may_need(u.limits, t.key, t.lease_no, t.limit_keys)
                and coalesce(holdfast._limit_keys_of(t.run_id, t.queue, t.handler, t.key,
                    t.lease_no, t.payload), '{}') <> u.limit_keys)
    ), found as materialized (
        select t.* from stale u
        cross join lateral (
            select t.ctid as tid, t.*, coalesce(holdfast._limit_keys_of(t.run_id, t.queue,
                t.handler, t.key, t.lease_no, t.payload), '{}') as new_keys
            from holdfast.tasks t
            where t.queue = u.queue and t.handler = u.handler and t.priority = u.priority
                and t.limit_keys = u.limit_keys and t.limited_at is not null and not t.paused
            order by t.limited_at limit 1000
            for update skip locked
        ) as t
    )
    update holdfast.tasks t set limit_keys = f.new_keys
    from found f
    where t.ctid = f.tid and f.new_keys <> f.limit_keys;
    get diagnostics v_changed = row_count;
    return v_changed > 0;
end $$;

-- Return true if a task that waits for p_keys may need one of these limits and does not wait for
-- it, or waits for it and does not need it. Called by _refile_groups, which looks closer then.
create or replace function holdfast._may_need(
    p_limits int[], p_key text, p_lease_no int, p_keys text
) returns boolean
language sql stable
return exists (
    select from holdfast.limits l
    where l.limit_id = any (p_limits)
        and (p_keys::jsonb ? l.limit_id::text) <> case
            when l.holds = 'run' then p_key = '' and p_lease_no = 0
            when l.kind in ('rate', 'units') then p_key <> '' or p_lease_no = 0
            else true end);
