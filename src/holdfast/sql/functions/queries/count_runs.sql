-- Counts of runs. What a count costs does not grow with the number of runs: each stops at a limit.

-- Return how many runs workflows have by status, each count at most p_limit; statuses without runs
-- are left out. With p_names null it is all runs, under an empty name. It reads entries of one
-- index, p_limit for each count. Locks nothing. Called by clients.
create or replace function holdfast.count_runs(p_names text[], p_limit int)
returns table (name text, status text, runs bigint)
language plpgsql stable
set enable_bitmapscan = off
as $$
declare
    v_statuses constant text[] := array['running', 'completed', 'failed', 'cancelled',
        'timed_out', 'terminated', 'continued'];
begin
    if p_names is null then
        return query
        select '', s.status, c.runs
        from unnest(v_statuses) as s (status)
        cross join lateral (
            select count(*) as runs from (
                select from holdfast.runs r where r.status = s.status limit p_limit) as found
        ) as c
        where c.runs > 0;
        return;
    end if;
    return query
    select n.name, s.status, c.runs
    from unnest(p_names) as n (name)
    cross join unnest(v_statuses) as s (status)
    cross join lateral (
        select count(*) as runs from (
            select from holdfast.runs r
            where r.name = n.name and r.status = s.status limit p_limit) as found
    ) as c
    where c.runs > 0;
end $$;

-- Return how many runs that match all filters that are not null have which workflow, state, queue
-- or tag, or which value of an attribute (p_by, or its name), most first. The newest p_most are
-- counted, found as list_runs finds them. If there may be more, stopped_at is the creation of the
-- last one that was looked at; without any value it is in a row of its own. Refuses a p_by that is
-- not a name, and a negative p_most (22023). Locks nothing.
-- Called by clients.
create or replace function holdfast.count_runs_by(
    p_by text, p_states text[], p_names text[], p_queues text[], p_tags text[], p_key text,
    p_since bigint, p_until bigint, p_parent_run_id uuid, p_input_contains jsonb,
    p_most int default 10000, p_attributes json default null, p_build text default null,
    p_bound int default 10000, p_seconds float8 default 0.2
) returns table (value text, runs bigint, stopped_at bigint)
language plpgsql stable
as $$
declare
    v_run_ids uuid[];
    v_stopped_at timestamptz;
begin
    if holdfast._is_name(p_by) is not true then
        raise exception 'runs cannot be counted by %: no attribute has such a name', p_by
            using errcode = '22023';
    end if;
    select l.run_ids, l.stopped_at into v_run_ids, v_stopped_at
    from holdfast._list_ids(p_states, p_names, p_queues, p_tags, p_key,
        holdfast._moment(holdfast._check_moment('the first moment', p_since)),
        holdfast._moment(holdfast._check_moment('the last moment', p_until)), p_parent_run_id,
        p_input_contains, null, null, holdfast._limit(p_most) + 1, p_bound, p_seconds,
        p_attributes, p_build) as l;
    if cardinality(v_run_ids) > p_most then
        v_run_ids := v_run_ids[:p_most];
        v_stopped_at := (select r.created_at from holdfast.runs r
            where r.run_id = v_run_ids[p_most]);
    end if;
    return query
    select g.value, count(*), holdfast._micros(v_stopped_at)
    from holdfast.get_runs(v_run_ids, false) as s
    cross join lateral unnest(case p_by
        when 'workflow' then array[s.name]
        when 'state' then array[s.state]
        when 'queue' then array[s.queue]
        when 'tag' then s.tags
        else array[s.attributes ->> p_by] end) as g (value)
    where g.value is not null
    group by g.value
    order by count(*) desc, g.value collate "C";
    if not found and v_stopped_at is not null then
        return query select null::text, 0::bigint, holdfast._micros(v_stopped_at);
    end if;
end $$;
