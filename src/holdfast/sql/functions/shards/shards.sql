-- Shards: which of the databases of an engine this is, and what it keeps for the others.

-- Return which shard this database is, and the history of all; nulls for an engine alone.
-- Called by clients and workers.
create or replace function holdfast.shard_state(out engine text, out number int, out counts int[])
language sql stable
return (select row (s.engine, s.number, s.counts) from (values (1)) as v
    left join holdfast.shard s on true);

-- Make this database a shard, or tell it of a longer history of the shards, which must begin with
-- what it knows: 3 where there came to be three, -2 where shard 2 was closed, or opened again.
-- `written`, `same`, or `other` if it does not, or if this is another shard. Calls that know less
-- have ended then, see _knows_shards. Refuses values that are not allowed (22023).
-- Locks: the table, alone, until the commit: each call that says what it knows reads it. Called by
-- clients.
create or replace function holdfast.set_shard_state(p_engine text, p_number int, p_history int[])
returns text
language plpgsql
as $$
declare
    v_known record;
    v_count int := (select max(u.change) from unnest(p_history) as u (change));
begin
    if (p_number >= 0 and p_number < v_count and v_count <= 64
        and (select bool_and(u.change > -v_count and u.change <> 0)
            from unnest(p_history) as u (change))) is not true
    then
        raise invalid_parameter_value using message = format(
            'there is no shard %s of %s, or not this history', p_number, v_count);
    end if;
    lock table holdfast.shard in access exclusive mode;
    select s.engine, s.number, s.counts into v_known from holdfast.shard s;
    if not found then
        insert into holdfast.shard (engine, number, counts) values (p_engine, p_number, p_history);
        return 'written';
    elsif (v_known.engine, v_known.number) <> (p_engine, p_number)
        or p_history[1:cardinality(v_known.counts)] <> v_known.counts
    then
        return 'other';
    elsif p_history = v_known.counts then
        return 'same';
    end if;
    update holdfast.shard set counts = p_history;
    return 'written';
end $$;

-- Return true if this database knows no more of the shards than its caller, whose history is so
-- long, and if the workflows with rules for starts have this digest (hex of sha256 of their names,
-- sorted, with commas), else refuse (HF009): the caller would start a run in a shard that is not
-- that of its key, or of its workflow, any more. A call that changes the history waits for the
-- transaction, as the table is read in it. A null: an earlier release, which sends no digest.
-- Locks: an advisory lock, shared, for which a change of the rules waits. Called in the condition
-- of calls of clients that know shards.
create or replace function holdfast._knows_shards(p_length int, p_ruled text default null)
returns boolean
language plpgsql
as $$
declare
    v_length int;
begin
    perform pg_advisory_xact_lock_shared(hashtext('holdfast.start_rules'), 0) from holdfast.shard s;
    -- A statement later: what a change wrote that this has waited for.
    select cardinality(s.counts) into v_length from holdfast.shard s;
    if v_length > p_length then
        raise exception using errcode = 'HF009', message = format(
            'the shards have changed %s times, and the caller knows %s', v_length, p_length);
    elsif p_ruled <> (
        select encode(sha256(convert_to(
            coalesce(string_agg(r.name, ',' order by r.name collate "C"), ''), 'UTF8')), 'hex')
        from holdfast.start_rules r)
    then
        raise exception using errcode = 'HF009', message =
            'the caller does not know which workflows have rules for starts';
    end if;
    return true;
end $$;

-- Keep signals for runs of other shards. Called by _send_signals.
create or replace function holdfast._forward_signals(
    p_run_ids uuid[], p_names text[], p_payloads json[], p_signal_ids text[]
) returns void
language sql
as $$
    insert into holdfast.forwards (target_run_id, details, created_at)
    select u.run_id, json_build_object('name', u.name, 'payload', u.payload::text,
        'signal_id', coalesce(u.signal_id, gen_random_uuid()::text)), holdfast.now()
    from unnest(p_run_ids, p_names, p_payloads, p_signal_ids) with ordinality
        as u (run_id, name, payload, signal_id, place)
    order by u.place
$$;

-- Keep an event for all other shards; it returns false if there are none. Called by publish.
create or replace function holdfast._forward_event(
    p_topic text, p_payload json, p_event_id text
) returns boolean
language plpgsql
as $$
begin
    insert into holdfast.forwards (shard, details, created_at)
    select n.number, json_build_object(
        'topic', p_topic, 'payload', p_payload::text, 'event_id', p_event_id), holdfast.now()
    from holdfast.shard s
    cross join lateral generate_series(
        0, (select max(u.change) - 1 from unnest(s.counts) as u (change))) as n (number)
    where n.number <> s.number
    order by n.number;
    return found;
end $$;

-- Return what is for other shards, oldest first, but for runs and shards that are held; nothing if
-- another worker was given something within ten seconds: two would mix up the order. A hold that
-- ends more than a minute from now was made before the clock was set back, and does not count.
-- Always from the first one on: a number that was drawn earlier may be committed later than those
-- around it. Ends with the one with which they take 8 MiB: they are sent in one call.
-- Refuses a limit below 0 (22023).
-- Locks: the row of shard. Called by workers.
create or replace function holdfast.take_forwards(
    p_worker text, p_held_runs uuid[], p_held_shards int[], p_limit int
)
returns table (forward_id bigint, shard int, target_run_id uuid, details json)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();  -- before the row is waited for
    v_bytes bigint := 0;
begin
    update holdfast.shard s
    set forwarder = p_worker, forwarder_until = v_now + interval '10 seconds'
    where s.forwarder is not distinct from p_worker
        or s.forwarder_until not between v_now and v_now + interval '1 minute';
    if not found then
        return;
    end if;
    for forward_id, shard, target_run_id, details in
        select f.forward_id, f.shard, f.target_run_id, f.details from holdfast.forwards f
        -- A table of hashes, whatever the planner believes of the arrays.
        where (f.target_run_id in (select u.id from unnest(p_held_runs) as u (id))) is not true
            and (f.shard in (select u.id from unnest(p_held_shards) as u (id))) is not true
        order by f.forward_id limit holdfast._limit(p_limit)
    loop
        return next;
        v_bytes := v_bytes + octet_length(details::text);
        exit when v_bytes >= 8388608;
    end loop;
end $$;

-- Forget what has arrived. Locks: the rows. Called by workers.
create or replace function holdfast.end_forwards(p_ids bigint[]) returns void
language sql
as $$
    delete from holdfast.forwards f where f.forward_id = any (p_ids)
$$;

-- Append signals that other shards have left, as signal_runs does: to the newest run of those that
-- continue the one they are for. One that any of these has is a duplicate: it was sent before.
-- Locks: as signal_runs. Called by workers.
create or replace function holdfast.receive_signals(
    p_run_ids uuid[], p_names text[], p_payloads json[], p_signal_ids text[],
    out outcomes text[], out notices text[]
)
language plpgsql
as $$
declare
    v_newest uuid[];
    v_new record;
    v_sent record;
begin
    select array_agg(coalesce(n.newest, u.run_id) order by u.place) into v_newest
    from unnest(p_run_ids) with ordinality as u (run_id, place)
    left join lateral holdfast.newest_runs(array[u.run_id]) as n on true;
    perform holdfast._lock_turns(v_newest);
    select array_agg(u.place order by u.place) as places,
        array_agg(u.newest order by u.place) as run_ids,
        array_agg(u.name order by u.place) as names,
        array_agg(u.payload order by u.place) as payloads,
        array_agg(u.signal_id order by u.place) as signal_ids
    into v_new
    from unnest(p_run_ids, v_newest, p_names, p_payloads, p_signal_ids) with ordinality
        as u (run_id, newest, name, payload, signal_id, place)
    where not holdfast._has_arrived(u.run_id, u.signal_id);
    outcomes := array_fill('duplicate'::text, array[cardinality(p_run_ids)]);
    if v_new.places is null then
        return;
    end if;
    select s.outcomes, s.notices into v_sent
    from holdfast.signal_runs(
        v_new.run_ids, v_new.names, v_new.payloads, v_new.signal_ids) as s;
    notices := v_sent.notices;
    for v_i in 1 .. cardinality(v_new.places) loop
        outcomes[v_new.places[v_i]] := v_sent.outcomes[v_i];
    end loop;
end $$;

-- Return true if a run, or one that continues it, has a signal. Called by receive_signals.
create or replace function holdfast._has_arrived(p_run_id uuid, p_signal_id text) returns boolean
language plpgsql stable
as $$
begin
    return exists (
        with recursive chain as (
            select p_run_id as run_id
            union
            select (r.output ->> 'run_id')::uuid
            from chain c
            cross join lateral (
                select * from holdfast.runs r where r.run_id = c.run_id limit 1
            ) as r
            where r.status = 'continued'
        )
        select from chain c where holdfast._has_signal(c.run_id, p_signal_id));
end $$;
