-- Queries about runs whose ids are known; list_runs.sql finds runs. None of them changes anything,
-- except that wait_for_end registers a topic.

-- Return the run that was started with a key; null if there is none. Called by clients.
create or replace function holdfast.find_run(p_name text, p_key text) returns uuid
language plpgsql stable
as $$
begin
    return r.run_id from holdfast.runs r where r.run_id = holdfast.keyed_run_id(p_name, p_key);
end $$;

-- Return the last run of the chain of each run that continued as new. Called by clients, and by
-- what sends signals and cancels for runs.
create or replace function holdfast.newest_runs(p_run_ids uuid[])
returns table (run_id uuid, newest uuid)
language plpgsql stable
as $$
begin
    return query
    with recursive chain as (
        select r.run_id as first, r.run_id, 0 as place,
            case r.status when 'continued' then (r.output ->> 'run_id')::uuid end as next
        from (select distinct u.run_id from unnest(p_run_ids) as u (run_id)) as u
        cross join lateral (
            select * from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as r
        union all
        select c.first, r.run_id, c.place + 1,
            case r.status when 'continued' then (r.output ->> 'run_id')::uuid end
        from chain c
        cross join lateral (
            select * from holdfast.runs r where r.run_id = c.next limit 1
        ) as r
    )
    select distinct on (c.first) c.first, c.run_id
    from chain c
    order by c.first, c.place desc;
end $$;

-- Return a run's reply to an update: its UpdateCompleted or UpdateRejected. It comes after the
-- update: what the log had before is not read. Called by clients.
create or replace function holdfast.find_reply(p_run_id uuid, p_update_id text)
returns table (event_type text, key text, details json, at bigint)
language plpgsql stable
as $$
begin
    return query
    select e.event_type, e.key, e.details, holdfast._micros(e.at)
    from holdfast.events e
    where e.run_id = p_run_id and e.key = p_update_id
        and e.event_type in ('UpdateCompleted', 'UpdateRejected')
        and e.idx > coalesce((
            select s.idx from holdfast.events s
            where s.run_id = p_run_id and s.key = p_update_id and s.event_type = 'SignalReceived'
            ), -1)
    order by e.idx limit 1;
end $$;

-- Return the SignalReceived of a run by the id of the signal or update. Locks nothing. Called by
-- workers.
create or replace function holdfast.find_signal(p_run_id uuid, p_signal_id text)
returns table (event_type text, key text, details json, at bigint)
language plpgsql stable
as $$
begin
    return query
    select e.event_type, e.key, e.details, holdfast._micros(e.at)
    from holdfast.events e
    where e.run_id = p_run_id and e.key = p_signal_id and e.event_type = 'SignalReceived'
    limit 1;
end $$;

-- Return what happened in all runs since a moment, oldest first. Called by clients.
create or replace function holdfast.recent_events(p_since bigint, p_limit int)
returns table (run_id uuid, idx int, event_type text, key text, details json, at bigint)
language plpgsql stable
set enable_indexscan = off
as $$
declare
    v_since timestamptz := holdfast._moment(holdfast._check_moment('a moment', p_since));
    v_until timestamptz := holdfast._recent_until(v_since, holdfast._limit(p_limit));
begin
    return query
    select e.run_id, e.idx, e.event_type, e.key,
        holdfast._details(e.run_id, e.event_type, e.key, e.details), holdfast._micros(e.at)
    from (
        select * from holdfast.events e
        where e.at >= v_since and e.at < v_until
        order by e.at, e.run_id, e.idx
        limit p_limit
    ) as e
    order by e.at, e.run_id, e.idx;
end $$;

-- Return a moment until which at least p_limit events have happened since another one, and not many
-- more; infinity if there are fewer. The index by time has them in no order: all since the moment
-- would be read and sorted. So ever longer times are looked at, and the first that has too many of
-- them is halved. Called by recent_events.
create or replace function holdfast._recent_until(p_since timestamptz, p_limit int)
returns timestamptz
language plpgsql stable
set enable_indexscan = off
as $$
declare
    v_now constant timestamptz := holdfast.now();
    v_low timestamptz := p_since;  -- until here there are too few
    v_high timestamptz;  -- until here there are too many
    v_until timestamptz := least(p_since + interval '1 minute', v_now);
    v_found bigint;
begin
    while v_low < v_now and (v_high - v_low < interval '1 second') is not true loop
        v_found := (
            select count(*) from (
                select from holdfast.events e
                where e.at >= p_since and e.at < v_until limit p_limit * 10::bigint + 1
            ) as e);
        if v_found >= p_limit and v_found <= p_limit * 10::bigint then
            return v_until;
        elsif v_found < p_limit then
            v_low := v_until;
        else
            v_high := v_until;
        end if;
        v_until := coalesce(v_low + (v_high - v_low) / 2,
            least(p_since + (v_low - p_since) * 4, v_now));
    end loop;
    return coalesce(v_high, 'infinity');
end $$;

-- Return the events of recent_events, for readers: details are the first p_clip characters of their
-- text, and `size` is how many bytes all of it has. Called by clients.
create or replace function holdfast.recent_log(p_since bigint, p_limit int, p_clip int)
returns table (
    run_id uuid, idx int, event_type text, key text, details text, size int, at bigint
)
language sql stable
as $$
    select e.run_id, e.idx, e.event_type, e.key, left(d.details, greatest(p_clip, 0)),
        octet_length(d.details), e.at
    from holdfast.recent_events(p_since, p_limit) as e
    cross join lateral (select e.details::text as details offset 0) as d
    order by e.at, e.run_id, e.idx
$$;

-- Return the newest value of each name that runs have set; a run that set none has one row
-- without a name. Called by clients.
create or replace function holdfast.get_values(p_run_ids uuid[])
returns table (run_id uuid, name text, value json)
language sql stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
    select distinct on (r.run_id, e.key) r.run_id, e.key, e.details -> 'value'
    from unnest(p_run_ids) as u (run_id)
    cross join lateral (
        select r.run_id from holdfast.runs r where r.run_id = u.run_id limit 1
    ) as r
    left join lateral (
        select * from holdfast.events e
        where e.run_id = r.run_id and e.event_type = 'ValueSet' offset 0
    ) as e on true
    order by r.run_id, e.key, e.idx desc
$$;

-- Register a topic with the runs that have not ended, to be told of their ends. Returns those that
-- have ended, as get_runs shows them. Called by clients.
-- Locks: the runs FOR SHARE, by run_id, so that no end comes in between.
create or replace function holdfast.wait_for_end(p_topic text, p_run_ids uuid[])
returns table (
    run_id uuid, name text, version int, key text, queue text, priority int, status text,
    state text, input json, output json, error json, tags text[], headers json,
    retention_seconds float8, created_at bigint, started_at bigint, completed_at bigint,
    deadline_at bigint, visible_at bigint, awaiting text[], worker text, attempts int,
    lease_no int, stuck text, paused boolean, parent_run_id uuid, parent_key text, kind text,
    due_at bigint, attributes json, build text, last_failure json
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_ended uuid[];
begin
    perform holdfast._register_waiters(
        p_run_ids, array_fill(p_topic, array[cardinality(p_run_ids)]));
    v_ended := array(
        select u.run_id from unnest(p_run_ids) as u (run_id)
        cross join lateral (
            select r.status from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as r
        where r.status <> 'running');
    if v_ended <> '{}' then
        return query select * from holdfast.get_runs(v_ended);
    end if;
end $$;

-- Delete every registration of a topic.
-- Locks: the registrations, skipping locked ones, which the ends of their runs are deleting. Called
-- by clients that stop.
create or replace function holdfast.forget_waits(p_topic text) returns void
language sql
as $$
    delete from holdfast.waiters w where w.ctid = any (array(
        select f.ctid from holdfast.waiters f where f.topic = p_topic for update skip locked))
$$;

-- Return the activities of a run that have not ended, by key. If visible_at is null, the activity
-- waits to be completed from outside; stuck is why the last worker could not begin with it. Called
-- by clients.
create or replace function holdfast.list_activities(p_run_id uuid, p_limit int default 100)
returns table (
    key text, name text, queue text, attempts int, worker text, visible_at bigint,
    started_at bigint, deadline_at bigint, heartbeat json, cancelled boolean, stuck text
)
language plpgsql stable
as $$
begin
    return query
    select t.key, split_part(t.handler, '@', 1), t.queue, t.attempts, t.worker,
        holdfast._micros(coalesce(t.limited_at, t.visible_at)), holdfast._micros(t.started_at),
        holdfast._micros(t.deadline_at), t.heartbeat, t.cancelled, t.stuck
    from holdfast.tasks t
    where t.run_id = p_run_id and t.kind = 'activity'
    order by t.key collate "C"
    limit holdfast._limit(p_limit);
end $$;
