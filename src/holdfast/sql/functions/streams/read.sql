-- Streams: what readers ask.

-- Wake the readers of streams for a time; the arrays are parallel. Nothing is done for a run that
-- has ended or does not exist. Locks: the rows of readers, by (run_id, name). Called by clients.
create or replace function holdfast.await_streams(
    p_run_ids uuid[], p_names text[], p_seconds float8
) returns void
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    delete from holdfast.stream_readers r where r.ctid = any (array(
        select r.ctid from holdfast.stream_readers r
        where r.run_id = any (p_run_ids) and r.until < v_now
        for update skip locked));
    insert into holdfast.stream_readers (run_id, name, until)
    select u.run_id, u.name, v_now + p_seconds * interval '1 second'
    from (select distinct u.run_id, u.name from unnest(p_run_ids, p_names) as u (run_id, name)) as u
    cross join lateral (
        select from holdfast.tasks t where t.run_id = u.run_id limit 1
    ) as t
    order by u.run_id, u.name
    on conflict (run_id, name) do update set until = excluded.until;
end $$;

-- Read streams from the offsets p_afters on; the arrays are parallel. p_open has the writers that a
-- reader wants to know the fate of, as rows of (place, key, lease_no, attempt, log_length): `place`
-- is that of its stream in the arrays. p_resumed is true for a reader that was given what is before
-- p_afters by an earlier call, and does not know by which writers.
--
-- Returns rows of three kinds, each with the place of its stream. One of each stream has `status`
-- of the run (null if there is no such run), `last_offset` and `base` of the stream (0 if there is
-- none), and `log_length`. One of each chunk has `items`; `writer_state` is 'final' if its step or
-- activity ended by this attempt, 'dead' if it did not or a newer attempt has written, else 'open';
-- `by_attempt` is the number of the attempt that counts instead of a dead one. One of each writer
-- of p_open has neither; for p_resumed, so has one of each other writer before p_afters that is not
-- final, unless a newer one of its key is there too. At most p_limit chunks of each stream, and no
-- more once there are p_bytes of them. All of it is of one moment.
-- Locks nothing. Called by clients.
create or replace function holdfast.read_streams(
    p_run_ids uuid[], p_names text[], p_afters bigint[], p_resumed boolean[],
    p_limit int, p_bytes int,
    p_open_places int[], p_open_keys text[], p_open_leases int[], p_open_attempts int[],
    p_open_lengths int[]
) returns table (
    place int, status text, last_offset bigint, log_length int, count int, key text, lease_no int,
    attempt int, closes boolean, items json, writer_state text, by_attempt int, base bigint
)
language plpgsql stable
as $$
begin
    return query
    with asked as materialized (
        select u.place::int, u.run_id, u.name, u.after, u.resumed
        from unnest(p_run_ids, p_names, p_afters, p_resumed) with ordinality
            as u (run_id, name, after, resumed, place)
    ), chunks as materialized (
        select a.place, a.run_id, c.*
        from asked a
        cross join lateral (
            select c.last_offset, c.count, c.key, c.lease_no, c.attempt, c.closes, c.items,
                sum(c.bytes) over (order by c.last_offset) - c.bytes as before
            from (
                select * from holdfast.stream_chunks c
                where c.run_id = a.run_id and c.name = a.name and c.last_offset > a.after
                order by c.last_offset limit p_limit
            ) as c
        ) as c
        where c.before < p_bytes
    ), fates as materialized (
        select w.*, f.writer_state, f.by_attempt
        from (
            select w.place, w.run_id, w.key, w.lease_no, w.attempt, max(w.log_length) as log_length,
                bool_or(w.is_asked) as is_asked
            from (
                select c.place, c.run_id, c.key, c.lease_no, c.attempt, null::int as log_length,
                    false as is_asked
                from chunks c where c.key <> ''
                union all
                select a.place, a.run_id, w.key, w.lease_no, w.attempt, w.log_length, true
                from asked a
                cross join lateral (
                    select * from holdfast.stream_writers w
                    where w.run_id = a.run_id and w.name = a.name and w.first_offset <= a.after
                        and not exists (
                            select from holdfast.stream_writers n
                            where n.run_id = w.run_id and n.key = w.key and n.name = w.name
                                and (n.lease_no, n.attempt) > (w.lease_no, w.attempt)
                                and n.first_offset <= a.after)
                    offset 0
                ) as w
                where a.resumed
                union all
                select o.place, p_run_ids[o.place], o.key, o.lease_no, o.attempt, o.log_length, true
                from unnest(
                    p_open_places, p_open_keys, p_open_leases, p_open_attempts, p_open_lengths)
                    as o (place, key, lease_no, attempt, log_length)
            ) as w
            group by w.place, w.run_id, w.key, w.lease_no, w.attempt
        ) as w
        cross join lateral holdfast._stream_fate(
            w.run_id, w.key, w.lease_no, w.attempt, w.log_length) as f
    )
    select a.place, r.status, coalesce(s.items, 0), coalesce(e.idx + 1, 0), null::int, null::text,
        null::int, null::int, null::boolean, null::json, null::text, null::int,
        coalesce(s.base, 0)
    from asked a
    left join lateral (
        select r.status from holdfast.runs r where r.run_id = a.run_id limit 1
    ) as r on true
    left join lateral (
        select s.items, s.base from holdfast.streams s
        where s.run_id = a.run_id and s.name = a.name limit 1
    ) as s on true
    left join lateral (
        select e.idx from holdfast.events e where e.run_id = a.run_id order by e.idx desc limit 1
    ) as e on true
    union all
    (select c.place, null, c.last_offset, null, c.count, c.key, c.lease_no, c.attempt, c.closes,
        c.items, coalesce(f.writer_state, 'final'), f.by_attempt, null
    from chunks c
    left join fates f on f.place = c.place and f.key = c.key and f.lease_no = c.lease_no
        and f.attempt = c.attempt
    order by c.place, c.last_offset)
    union all
    select f.place, null, null, null, null, f.key, f.lease_no, f.attempt, null, null,
        f.writer_state, f.by_attempt, null
    from fates f
    where f.is_asked and (f.writer_state <> 'final' or not p_resumed[f.place]);
end $$;

-- Return what became of an attempt that has written to streams: 'final' if its step or activity
-- ended by it; 'dead' if it ended by another attempt, or if a newer one has written: its number is
-- `by_attempt`; else 'open'. The log is searched for the end from p_log_length on,
-- or from where it was when the attempt began to write.
-- Locks nothing. Called by read_streams.
create or replace function holdfast._stream_fate(
    p_run_id uuid, p_key text, p_lease_no int, p_attempt int, p_log_length int,
    out writer_state text, out by_attempt int
)
language plpgsql stable
as $$
declare
    v_end record;
begin
    select e.event_type, e.details into v_end
    from holdfast.events e
    where e.run_id = p_run_id and e.key = p_key
        and e.idx >= coalesce(p_log_length, (
            select min(w.log_length) from holdfast.stream_writers w
            where w.run_id = p_run_id and w.key = p_key and w.lease_no = p_lease_no
                and w.attempt = p_attempt), 0)
        and e.event_type in ('StepCompleted', 'StepFailed', 'ActivityCompleted', 'ActivityFailed')
    order by e.idx limit 1;
    if found then
        by_attempt := coalesce((v_end.details ->> 'attempt')::int, 1);
        writer_state := case when case
            when v_end.event_type like 'Step%'
                then p_attempt = by_attempt and p_lease_no = (v_end.details ->> 'streams')::int
            else p_lease_no = coalesce((v_end.details ->> 'lease_no')::int, by_attempt)
            end then 'final' else 'dead' end;
        return;
    end if;
    select w.attempt into by_attempt
    from holdfast.stream_writers w
    where w.run_id = p_run_id and w.key = p_key
        and (w.lease_no, w.attempt) > (p_lease_no, p_attempt)
    order by w.lease_no desc, w.attempt desc limit 1;
    writer_state := case when found then 'dead' else 'open' end;
end $$;

-- Return the streams of a run, by name, with what they have of all attempts. Locks nothing. Called
-- by clients.
create or replace function holdfast.list_streams(p_run_id uuid)
returns table (name text, "values" bigint, last_offset bigint, bytes bigint)
language sql stable
begin atomic
    select s.name, s.items - s.base, s.items, s.bytes from holdfast.streams s
    where s.run_id = p_run_id
    order by s.name;
end;
