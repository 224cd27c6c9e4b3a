-- The results of transactional steps, which their own transactions add to the log.

-- Append the result of a step to the log of its run, as the last statement of the transaction that
-- made it: the lock is held until the commit, and the entry holds up the run's other commits. Who
-- sends the commit later lets the server end the session if it does not come within five seconds.
-- Returns the entry's index. Who has the commit in the same message gets no rows: if the index is
-- not the expected one, it is sent as a notice, too. HF008 if the worker does not hold the run by
-- this lease, or the run has ended.
-- HF010 if the step has ended: in the log, at p_expected or later, which is where the log ended
-- when the step was called (a message may arrive after its connection was lost, and after the next
-- try).
-- Transactions of one run wait for each other here, one behind the other, so that a signal or a
-- cancel that comes meanwhile is next but a few: if they shared the lock, it would be free only
-- after the last of them. A heartbeat passes over a row that is locked: if less than half of
-- p_lease_seconds is left of the lease, it is renewed here.
-- Locks: the turn FOR NO KEY UPDATE, so that no other worker takes it before the commit; the event.
-- Called by workers.
create or replace function holdfast.record_step(
    p_worker text, p_run_id uuid, p_lease_no int, p_key text, p_details json, p_at bigint,
    p_lease_seconds float8, p_expected int default null
) returns int
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_until timestamptz;
    v_idx int;
begin
    select t.visible_at into v_until from holdfast.tasks t
    where t.run_id = p_run_id and t.key = '' and t.worker = p_worker and t.lease_no = p_lease_no
    for no key update;
    if found then
        if v_until < v_now + p_lease_seconds / 2 * interval '1 second' then
            update holdfast.tasks t set visible_at = v_now + p_lease_seconds * interval '1 second'
            where t.run_id = p_run_id and t.key = '';
        end if;
        -- Who holds the turn knows that the run has not ended, and mostly where its log does.
        insert into holdfast.events (run_id, idx, event_type, key, details, at)
        select p_run_id, p_expected, 'StepCompleted', p_key, p_details, holdfast._moment(p_at)
        from holdfast.events e where e.run_id = p_run_id and e.idx = p_expected - 1
        on conflict do nothing;
        if found then
            return p_expected;
        end if;
        if exists (
            select from holdfast.events e
            where e.run_id = p_run_id and e.idx >= p_expected and e.key = p_key
                and e.event_type in ('StepCompleted', 'StepFailed'))
        then
            raise exception using errcode = 'HF010', message = format(
                'the log has the end of step %s', p_key);
        end if;
        v_idx := holdfast._append(
            holdfast._moment(p_at), p_run_id, 'StepCompleted', p_details, p_key);
    end if;
    if v_idx is null then
        raise exception using errcode = 'HF008', message = format(
            'worker %s does not hold run %s in this database', p_worker, p_run_id);
    end if;
    if v_idx is distinct from p_expected then
        raise info '%', v_idx;  -- it is sent at once, and wakes the worker before the commit
    end if;
    return v_idx;
end $$;

-- Return the index of a step's result in the log of its run, null if it is not there: it will never
-- be by a transaction whose commit was not answered. That one is waited for.
-- Locks: the turn. Called by workers.
create or replace function holdfast.find_step(p_run_id uuid, p_key text) returns int
language plpgsql
as $$
begin
    perform holdfast._lock_turns(array[p_run_id]);
    return (
        select e.idx from holdfast.events e
        where e.run_id = p_run_id and e.key = p_key and e.event_type = 'StepCompleted'
        limit 1);
end $$;

-- Return since when results say of which run they are, in microseconds: since the migration with
-- this number. Locks nothing. Called by workers.
create or replace function holdfast.results_since() returns bigint
language sql stable
as $$
    select holdfast._micros(m.applied_at) from holdfast.schema_migrations m where m.version = 56
$$;

-- Return what the keys of results of a run end with, '' for one that began before `results_since`;
-- null if it is not here. See `result_key` of the workers. Locks nothing. Called by
-- needless_results.
create or replace function holdfast._results_mark(p_run_id uuid) returns text
language sql stable
as $$
    select case when b.began >= s.since then format(' %s.%s', s.since, b.began) else '' end
    from holdfast.runs r
    cross join lateral (select holdfast.results_since() as since) as s
    cross join lateral (select holdfast._began(r.run_id) as began) as b
    where r.run_id = p_run_id
$$;

-- Return for each step if the result that its transaction has left in another database is not
-- needed any more: it is in the log, or its run cannot be retried. Null for a run that is not here:
-- it was deleted, maybe before another of the same id, or it is one of another shard, application
-- or engine. Locks nothing. Called by workers.
create or replace function holdfast.needless_results(p_run_ids uuid[], p_keys text[])
returns boolean[]
language plpgsql stable
as $$
begin
    return array(
        select case when right(u.key, length(m.mark)) = m.mark
                and (m.mark > '' or u.key !~ E' \\d{16}\\.\\d{16}$')
            then r.status = 'completed' or exists (
                select from holdfast.events e
                where e.run_id = u.run_id and e.key = left(u.key, length(u.key) - length(m.mark))
                    and e.event_type = 'StepCompleted') end
        from unnest(p_run_ids, p_keys) with ordinality as u (run_id, key, place)
        left join lateral (select holdfast._results_mark(u.run_id) as mark) as m on true
        left join holdfast.runs r on r.run_id = u.run_id
        order by u.place);
end $$;
