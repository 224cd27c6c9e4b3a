-- Streams: what attempts of steps and activities, and the code of workflows, write.

-- Append chunks to streams; the arrays are parallel. An attempt is that of a key under a lease of
-- the task p_tasks ('' for the turn of a run), which p_worker must have: a chunk of any other
-- attempt is not written. p_begins is true for the first chunk of an attempt in a stream, which
-- makes the stream if there is none. p_afters is null for a first try. A repeated call says how far
-- each stream was when its attempt's last chunk had been written: a chunk of the attempt after that
-- was written by an earlier try, and is not written again.
--
-- `offsets` has the offset of each chunk's last value in the order given, null if the attempt's
-- lease is lost, -1 if the run has so many streams that it gets no more. Notices are (topic,
-- payload); with p_tell, the schema's name, the call sends them itself if it can.
-- Refuses values that no reader can read (22023).
-- Locks: rows of streams by (run_id, name); shared advisory locks of the runs, in order, for which
-- _continue_streams waits (of 512, as the server has room for some thousands); then the leases are
-- checked; rows of writers that it makes. Called by workers.
create or replace function holdfast.write_streams(
    p_worker text, p_run_ids uuid[], p_tasks text[], p_keys text[], p_leases int[],
    p_attempts int[], p_names text[], p_counts int[], p_closes boolean[], p_items json[],
    p_begins boolean[], p_afters bigint[] default null, p_tell text default null,
    out now bigint, out offsets bigint[], out notices text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_held int[];
    v_lengths int[];
    v_written bigint[];
begin
    perform holdfast._check_json('the value of a stream', u.items, 257)  -- in an array
    from unnest(p_items) as u (items) where not holdfast._is_legible(u.items);
    now := holdfast._micros(v_now);
    if true = any (p_begins) then  -- before the leases are checked, so before an end by others
        v_lengths := array(
            select e.idx + 1
            from unnest(p_run_ids) with ordinality as u (run_id, place)
            left join lateral (
                select e.idx from holdfast.events e
                where e.run_id = u.run_id order by e.idx desc limit 1
            ) as e on true
            order by u.place);
        v_held := holdfast._leased(p_worker, p_run_ids, p_tasks, p_leases);
        perform holdfast._make_streams(
            array(select p_run_ids[h.place] from unnest(v_held) as h (place)),
            array(select p_names[h.place] from unnest(v_held) as h (place)), 100);  -- MOST_STREAMS
    end if;
    perform holdfast._lock_streams(p_run_ids, p_names);
    perform pg_advisory_xact_lock_shared(hashtext('holdfast.streams'), u.run)
    from (select distinct hashtext(n.run_id::text) & 511 as run from unnest(p_run_ids) as n (run_id)
        order by 1) as u;
    v_held := holdfast._leased(p_worker, p_run_ids, p_tasks, p_leases);
    if p_afters is not null then
        select array_agg(w.last_offset order by u.place) into v_written
        from unnest(p_run_ids, p_names, p_keys, p_leases, p_attempts, p_afters) with ordinality
            as u (run_id, name, key, lease_no, attempt, after, place)
        left join lateral (
            select c.last_offset from holdfast.stream_chunks c
            where c.run_id = u.run_id and c.name = u.name and c.last_offset > u.after
                and c.key = u.key and c.lease_no = u.lease_no and c.attempt = u.attempt
            order by c.last_offset limit 1
        ) as w on true;
        v_held := array(select h.place from unnest(v_held) as h (place)
            where v_written[h.place] is null);
    end if;
    offsets := holdfast._append_chunks(v_held, p_run_ids, p_keys, p_leases, p_attempts, p_names,
        p_counts, p_closes, p_items);
    if true = any (p_begins) then
        perform holdfast._note_writers(v_held, p_run_ids, p_keys, p_leases, p_attempts, p_names,
            p_counts, p_begins, v_lengths, offsets);
    end if;
    if v_written is not null then
        offsets := array(select coalesce(v_written[g.place], offsets[g.place])
            from generate_series(1, cardinality(p_run_ids)) as g (place) order by g.place);
    end if;
    notices := holdfast._tell(p_tell, holdfast._wake_readers(v_now, p_run_ids, p_names));
end $$;

-- Return the places of the attempts whose leases a worker has; the arrays are parallel. Locks
-- nothing. Called by write_streams.
create or replace function holdfast._leased(
    p_worker text, p_run_ids uuid[], p_tasks text[], p_leases int[]
) returns int[]
language plpgsql
as $$
begin
    return array(
        select u.place
        from unnest(p_run_ids, p_tasks, p_leases) with ordinality
            as u (run_id, task, lease_no, place)
        cross join lateral (
            select t.worker, t.lease_no from holdfast.tasks t
            where t.run_id = u.run_id and t.key = u.task limit 1
        ) as t
        where t.worker = p_worker and t.lease_no = u.lease_no);
end $$;

-- Note which attempts have begun to write to a stream, of the chunks whose places are in p_held,
-- and how long the logs were when they still had their leases.
-- Locks: the rows that it makes, by their key. Called by write_streams.
create or replace function holdfast._note_writers(
    p_held int[], p_run_ids uuid[], p_keys text[], p_leases int[], p_attempts int[],
    p_names text[], p_counts int[], p_begins boolean[], p_lengths int[], p_offsets bigint[]
) returns void
language plpgsql
as $$
begin
    insert into holdfast.stream_writers (
        run_id, key, lease_no, attempt, name, first_offset, log_length)
    select u.run_id, u.key, u.lease_no, u.attempt, u.name, u.last_offset - u.count + 1,
        u.log_length
    from unnest(p_run_ids, p_keys, p_leases, p_attempts, p_names, p_counts, p_begins, p_lengths,
        p_offsets) with ordinality
        as u (run_id, key, lease_no, attempt, name, count, begins, log_length, last_offset, place)
    where u.begins and u.last_offset > 0 and u.place = any (p_held)
    order by u.run_id, u.key, u.lease_no, u.attempt, u.name
    on conflict do nothing;
end $$;

-- Make the streams that do not exist, as long as their runs have no more than p_most, for which
-- those of holdfast itself ($…) do not count; null for any number. The arrays are parallel.
-- Locks: the rows that it makes, by (run_id, name). Called by write_streams, write_logs and
-- _write_streams_of_code.
create or replace function holdfast._make_streams(
    p_run_ids uuid[], p_names text[], p_most int
) returns void
language plpgsql
as $$
begin
    insert into holdfast.streams (run_id, name)
    select u.run_id, u.name
    from (
        select n.*, row_number() over (partition by n.run_id order by n.name) as number
        from (
            select distinct u.run_id, u.name from unnest(p_run_ids, p_names) as u (run_id, name)
        ) as n
        where not exists (
            select from holdfast.streams s where s.run_id = n.run_id and s.name = n.name)
    ) as u
    cross join lateral (
        select count(*) as count from holdfast.streams s
        where s.run_id = u.run_id and left(s.name, 1) <> '$'
    ) as s
    where p_most is null or s.count + u.number <= p_most
    order by u.run_id, u.name
    on conflict do nothing;
end $$;

-- Lock streams, by (run_id, name). Called by write_streams, write_logs and
-- _write_streams_of_code.
create or replace function holdfast._lock_streams(p_run_ids uuid[], p_names text[]) returns void
language plpgsql
as $$
begin
    perform from (
        select distinct u.run_id, u.name from unnest(p_run_ids, p_names) as u (run_id, name)
        order by u.run_id, u.name
    ) as u
    cross join lateral (
        select from holdfast.streams s
        where s.run_id = u.run_id and s.name = u.name for update
    ) as s;
end $$;

-- Append the chunks whose places are in p_held, in the order of the arrays. Returns `offsets` as
-- write_streams does, of those in p_held.
-- Locks: expects the streams locked. Called by write_streams, write_logs and
-- _write_streams_of_code.
create or replace function holdfast._append_chunks(
    p_held int[], p_run_ids uuid[], p_keys text[], p_leases int[], p_attempts int[],
    p_names text[], p_counts int[], p_closes boolean[], p_items json[]
) returns bigint[]
language plpgsql
as $$
declare
    v_offsets bigint[];
begin
    with given as materialized (
        select u.*, s.tid, octet_length(u.items::text) as bytes,
            s.items + sum(u.count) over (partition by u.run_id, u.name order by u.place)
                as last_offset
        from unnest(p_run_ids, p_keys, p_leases, p_attempts, p_names, p_counts, p_closes, p_items)
            with ordinality
            as u (run_id, key, lease_no, attempt, name, count, closes, items, place)
        cross join lateral (
            select s.ctid as tid, s.items from holdfast.streams s
            where s.run_id = u.run_id and s.name = u.name limit 1
        ) as s
        where u.place = any (p_held)
    ), moved as (
        update holdfast.streams s
        set items = g.items, chunks = s.chunks + g.chunks, bytes = s.bytes + g.bytes
        from (
            select g.tid, max(g.last_offset) as items, count(*) as chunks, sum(g.bytes) as bytes
            from given g group by g.tid
        ) as g
        where s.ctid = g.tid
    ), written as (
        insert into holdfast.stream_chunks (
            run_id, name, last_offset, count, key, lease_no, attempt, closes, bytes, items)
        select g.run_id, g.name, g.last_offset, g.count, g.key, g.lease_no, g.attempt, g.closes,
            g.bytes, g.items
        from given g
    )
    select array_agg(case when h.place is not null then coalesce(g.last_offset, -1) end
        order by u.place)
    into v_offsets
    from generate_series(1, cardinality(p_run_ids)) as u (place)
    left join unnest(p_held) as h (place) on h.place = u.place
    left join given g on g.place = u.place;
    return v_offsets;
end $$;

-- Return notices for the readers that wait for streams, or null. Called by write_streams,
-- write_logs and _write_streams_of_code.
create or replace function holdfast._wake_readers(
    p_now timestamptz, p_run_ids uuid[], p_names text[]
) returns text[]
language plpgsql
as $$
begin
    if not exists (select from holdfast.stream_readers) then
        return null;
    end if;
    return (
        select array_agg(distinct array['stream/' || u.run_id, u.name])
        from unnest(p_run_ids, p_names) as u (run_id, name)
        cross join lateral (
            select r.until from holdfast.stream_readers r
            where r.run_id = u.run_id and r.name = u.name limit 1
        ) as r
        where r.until > p_now);
end $$;

-- Carry out StreamWritten: append what the code of workflows has written. Parallel arrays, in the
-- order of the logs. Returns (topic, payload) notices, or null.
-- Locks: streams, by (run_id, name). Called by _carry_out.
create or replace function holdfast._write_streams_of_code(
    p_now timestamptz, p_run_ids uuid[], p_details json[]
) returns text[]
language plpgsql
as $$
declare
    v_names text[] := array(select u.details ->> 'stream'
        from unnest(p_details) with ordinality as u (details, place) order by u.place);
    v_places int[] := array(select g from generate_series(1, cardinality(p_run_ids)) as g);
begin
    perform holdfast._make_streams(p_run_ids, v_names, null);
    perform holdfast._lock_streams(p_run_ids, v_names);
    perform holdfast._append_chunks(v_places, p_run_ids,
        array_fill(''::text, array[cardinality(p_run_ids)]),
        array_fill(0, array[cardinality(p_run_ids)]), array_fill(0, array[cardinality(p_run_ids)]),
        v_names, array_fill(1, array[cardinality(p_run_ids)]),
        array(select coalesce((u.details ->> 'closes')::boolean, false)
            from unnest(p_details) with ordinality as u (details, place) order by u.place),
        array(select u.details -> 'items'
            from unnest(p_details) with ordinality as u (details, place) order by u.place));
    return holdfast._wake_readers(p_now, p_run_ids, v_names);
end $$;

-- Let the streams of runs continue those of the runs that continued or were retried as them, but
-- not their logs: p_details have their ids as WorkflowContinuedAsNew has, parallel to p_run_ids.
-- Locks: advisory locks of the runs, in order: attempts write nothing to them afterwards, as the
-- leases are gone; then the rows that it makes, by (run_id, name). Called by _continue_runs and
-- fork_run.
create or replace function holdfast._continue_streams(p_run_ids uuid[], p_details json[])
returns void
language plpgsql
as $$
begin
    perform pg_advisory_xact_lock(hashtext('holdfast.streams'), u.run)
    from (select distinct hashtext(n.run_id::text) & 511 as run from unnest(p_run_ids) as n (run_id)
        order by 1) as u;
    insert into holdfast.streams (run_id, name, base, items)
    select u.new_run_id, s.name, s.items, s.items
    from (
        select u.run_id, (u.details ->> 'run_id')::uuid as new_run_id
        from unnest(p_run_ids, p_details) as u (run_id, details)
    ) as u
    cross join lateral (
        select s.name, s.items from holdfast.streams s
        where s.run_id = u.run_id and left(s.name, 1) <> '$' offset 0
    ) as s
    order by u.new_run_id, s.name
    on conflict do nothing;
end $$;
