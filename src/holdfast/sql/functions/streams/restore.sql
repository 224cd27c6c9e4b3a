-- Streams of archived runs that come back.

-- Make the streams of a run again from the lines that it was archived as. Which attempts began to
-- write, and where, follows from their chunks.
-- Locks: the rows that it makes. Called by restore_run.
create or replace function holdfast._restore_streams(p_run_id uuid, p_lines json[]) returns void
language plpgsql
as $$
begin
    insert into holdfast.stream_chunks (
        run_id, name, last_offset, count, key, lease_no, attempt, closes, bytes, items)
    select p_run_id, c.name, c.last_offset, c.count, c.key, c.lease_no, c.attempt, c.closes,
        octet_length(c.items::text), c.items
    from unnest(p_lines) as l (line)
    cross join lateral json_to_recordset(l.line -> 'chunks') as c (
        name text, last_offset bigint, count int, key text, lease_no int, attempt int,
        closes boolean, items json);
    insert into holdfast.stream_writers (
        run_id, key, lease_no, attempt, name, first_offset, log_length)
    select p_run_id, c.key, c.lease_no, c.attempt, c.name, min(c.last_offset - c.count + 1), 0
    from holdfast.stream_chunks c
    where c.run_id = p_run_id and c.key <> ''
    group by c.key, c.lease_no, c.attempt, c.name;
    insert into holdfast.streams (run_id, name, base, items, chunks, bytes)
    select p_run_id, s.name, s.base, coalesce(c.last_offset, s.base), c.chunks, c.bytes
    from json_to_recordset(p_lines[1] -> 'streams') as s (name text, base bigint)
    cross join lateral (
        select max(c.last_offset) as last_offset, count(*) as chunks,
            coalesce(sum(c.bytes), 0) as bytes
        from holdfast.stream_chunks c where c.run_id = p_run_id and c.name = s.name
    ) as c;
end $$;
