-- Delete runs that have ended, with all that is theirs.

-- Delete runs that have ended, and everything that has their ids. A test compares the tables here
-- with those that have a column run_id. Returns how many runs there were.
-- Locks: rows of runs, by run_id, first: who reads a run that has ended to make another of it holds
-- its row. Then what belongs to them, which nobody else locks. Called by sweep_runs,
-- delete_archived, _finish_deletions and _delete_runs_of.
create or replace function holdfast._delete_runs(p_run_ids uuid[]) returns int
language plpgsql
as $$
declare
    v_deleted int;
begin
    perform from (
        select u.run_id from unnest(p_run_ids) as u (run_id) order by u.run_id
    ) as u
    cross join lateral (
        select from holdfast.runs r where r.run_id = u.run_id for update
    ) as r;
    if exists (select from holdfast.payload_owners) then
        perform holdfast._leave_payloads(p_run_ids);
        delete from holdfast.payload_users u where u.run_id = any (p_run_ids);
    end if;
    if exists (select from holdfast.streams s where s.run_id = any (p_run_ids)) then
        delete from holdfast.stream_chunks c where c.run_id = any (p_run_ids);
        delete from holdfast.stream_writers w where w.run_id = any (p_run_ids);
        delete from holdfast.streams s where s.run_id = any (p_run_ids);
    end if;
    delete from holdfast.stream_readers r where r.run_id = any (p_run_ids);
    delete from holdfast.webhooks h where h.run_id = any (p_run_ids);
    delete from holdfast.waiters w where w.run_id = any (p_run_ids);
    delete from holdfast.ends_to_trace t where t.run_id = any (p_run_ids);
    delete from holdfast.tasks t where t.run_id = any (p_run_ids);
    delete from holdfast.step_tasks x where x.run_id = any (p_run_ids);
    delete from holdfast.step_states s where s.run_id = any (p_run_ids);
    delete from holdfast.attributes a where a.run_id = any (p_run_ids);
    delete from holdfast.events e where e.run_id = any (p_run_ids);
    delete from holdfast.runs r where r.run_id = any (p_run_ids);
    get diagnostics v_deleted = row_count;
    return v_deleted;
end $$;

-- Delete the last p_rows entries of a run's log, p_rows results of elements, and p_rows chunks of
-- streams: a part of a run that is too large for one transaction. From now on the run counts as
-- deleted for starts, forks and retries, and it is the first that the next call finds.
-- Locks: expects the run's row locked. Called by sweep_runs and delete_archived.
create or replace function holdfast._delete_part(p_run_id uuid, p_rows int) returns void
language plpgsql
as $$
begin
    update holdfast.runs r set delete_after = '-infinity'
    where r.run_id = p_run_id and r.delete_after <> '-infinity';
    delete from holdfast.events e
    where e.run_id = p_run_id and e.idx > (
        select l.idx - p_rows from holdfast.events l
        where l.run_id = p_run_id order by l.idx desc limit 1);
    delete from holdfast.step_tasks x where x.ctid = any (array(
        select l.ctid from holdfast.step_tasks l where l.run_id = p_run_id limit p_rows));
    with gone as (
        delete from holdfast.stream_chunks c where c.ctid = any (array(
            select l.ctid from holdfast.stream_chunks l where l.run_id = p_run_id limit p_rows))
        returning c.name
    )
    update holdfast.streams s set chunks = s.chunks - g.count
    from (select g.name, count(*) as count from gone g group by g.name) as g
    where s.run_id = p_run_id and s.name = g.name;
end $$;

-- Delete what is left of runs of which a part is deleted: nobody may take it for the whole, and a
-- start with the key of such a run starts another. Returns true if there were some.
-- Locks: these runs, by run_id, then what belongs to them. Called by _hold_runs and start_one.
create or replace function holdfast._finish_deletions(p_run_ids uuid[]) returns boolean
language plpgsql
as $$
declare
    v_left uuid[] := array(
        select u.run_id from unnest(p_run_ids) as u (run_id)
        cross join lateral (
            select r.delete_after from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as r
        where r.delete_after = '-infinity');
begin
    if cardinality(v_left) = 0 then
        return false;
    end if;
    perform from (
        select u.run_id from unnest(v_left) as u (run_id) order by u.run_id
    ) as u
    cross join lateral (
        select from holdfast.runs r where r.run_id = u.run_id for update
    ) as r;
    return holdfast._delete_runs(array(  -- a statement later: it may be another run by now
        select u.run_id from unnest(v_left) as u (run_id)
        cross join lateral (
            select r.delete_after from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as r
        where r.delete_after = '-infinity')) > 0;
end $$;

-- Return how many rows are to be deleted with each run, about: the length of its log, the elements
-- of its maps and the chunks of its streams. Locks nothing. Called by _due_runs, lease_due_runs and
-- delete_archived.
create or replace function holdfast._rows_of_runs(p_run_ids uuid[])
returns table (run_id uuid, row_count bigint)
language plpgsql stable
as $$
begin
    return query
    select u.run_id, 1 + coalesce(e.idx + 1, 0) + coalesce(s.elements, 0) + coalesce(c.chunks, 0)
    from unnest(p_run_ids) as u (run_id)
    left join lateral (
        select e.idx from holdfast.events e
        where e.run_id = u.run_id order by e.idx desc limit 1
    ) as e on true
    left join lateral (
        select sum(case when x.is_left then coalesce(s.initial_tasks, 1) else 1 end) as elements
        from holdfast.step_states s
        left join lateral (
            select true as is_left from holdfast.step_tasks x
            where x.run_id = s.run_id and x.step_slug = s.step_slug limit 1
        ) as x on true
        where s.run_id = u.run_id offset 0
    ) as s on true
    left join lateral (
        select sum(s.chunks)::bigint as chunks from holdfast.streams s
        where s.run_id = u.run_id offset 0
    ) as c on true;
end $$;
