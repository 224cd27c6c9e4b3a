-- Run logs: what the code of runs logs, as one stream a run. No lease is asked for: a line is true
-- also if its attempt does not count, and the last lines come after the end of the run.

-- Append chunks of log lines to the stream p_name of their runs; the arrays are parallel. p_writer
-- and the number of a chunk tell it from all others: a repeated call, with p_again, does not write
-- again what an earlier one has written. Nothing is written for a run that does not exist, or that
-- is being deleted. A run keeps about p_most_bytes of lines: the oldest go.
--
-- Notices are (topic, payload); with p_tell, the schema's name, the call sends them itself if it
-- can. Refuses values that no reader can read (22023).
-- Locks: rows of runs, shared, by run_id; streams by (run_id, name). Called by workers.
create or replace function holdfast.write_logs(
    p_name text, p_writer int, p_run_ids uuid[], p_numbers int[], p_counts int[], p_items json[],
    p_most_bytes bigint, p_again boolean default false, p_tell text default null,
    out now bigint, out notices text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_there uuid[];
    v_held int[];
    v_names text[] := array_fill(p_name, array[cardinality(p_run_ids)]);
begin
    perform holdfast._check_json('the line of a log', u.items, 257)  -- in an array
    from unnest(p_items) as u (items) where not holdfast._is_legible(u.items);
    now := holdfast._micros(v_now);
    v_there := array(
        select l.run_id
        from (
            select distinct u.run_id from unnest(p_run_ids) as u (run_id) order by u.run_id
        ) as u
        cross join lateral (  -- who deletes a run has locked its row
            select r.run_id from holdfast.runs r
            where r.run_id = u.run_id and r.delete_after is distinct from '-infinity'
            for key share
        ) as l);
    perform holdfast._make_streams(
        v_there, array_fill(p_name, array[cardinality(v_there)]), null);
    perform holdfast._lock_streams(p_run_ids, v_names);
    v_held := array(
        select u.place
        from unnest(p_run_ids, p_numbers) with ordinality as u (run_id, number, place)
        where u.run_id = any (v_there) and not (p_again and exists (
            select from holdfast.stream_chunks c
            where c.run_id = u.run_id and c.name = p_name
                and c.attempt = p_writer and c.lease_no = u.number))
        order by u.place);
    perform holdfast._append_chunks(v_held, p_run_ids,
        array_fill(''::text, array[cardinality(p_run_ids)]), p_numbers,
        array_fill(p_writer, array[cardinality(p_run_ids)]), v_names, p_counts,
        array_fill(false, array[cardinality(p_run_ids)]), p_items);
    perform holdfast._drop_oldest_lines(s.run_id, s.name, p_most_bytes)
    from (
        select u.run_id, s.name from unnest(v_there) as u (run_id)
        cross join lateral (
            select s.name from holdfast.streams s
            where s.run_id = u.run_id and s.name = p_name and s.bytes > p_most_bytes limit 1
        ) as s
    ) as s;
    notices := holdfast._tell(p_tell, holdfast._wake_readers(v_now, p_run_ids, v_names));
end $$;

-- Delete the oldest chunks of a log, so that three quarters of p_most_bytes are left: the next ones
-- have room for a while. Its newest chunk stays. Locks: expects the stream locked. Called by
-- write_logs.
create or replace function holdfast._drop_oldest_lines(
    p_run_id uuid, p_name text, p_most_bytes bigint
) returns void
language plpgsql
as $$
declare
    v_gone tid[] := array(
        select c.tid
        from (
            select c.ctid as tid, row_number() over newest as rank,
                sum(c.bytes) over newest as bytes
            from holdfast.stream_chunks c
            where c.run_id = p_run_id and c.name = p_name
            window newest as (order by c.last_offset desc)
        ) as c
        where c.rank > 1 and c.bytes > p_most_bytes * 3 / 4);
begin
    with gone as (
        delete from holdfast.stream_chunks c where c.ctid = any (v_gone) returning c.bytes
    )
    update holdfast.streams s set chunks = s.chunks - g.chunks, bytes = s.bytes - g.bytes
    from (select count(*) as chunks, coalesce(sum(gone.bytes), 0) as bytes from gone) as g
    where s.run_id = p_run_id and s.name = p_name;
end $$;
