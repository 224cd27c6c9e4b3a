-- Starts of workflows and flows that have rules, or with rules of their own.

-- Start one run as the rules of its workflow allow. If the id exists, the run is left as it is.
--
-- First comes the debounce: a run that waits for quiet is changed, and is this start's run. Then
-- the singleton: if a run with the key is active, this start is refused, or leads to the active
-- run, or its run waits. Then the throttle. A child is not shared: for it, what would lead to
-- another run is refused.
--
-- With `after` in its rules the run takes the key of this run, which has ended: it is held, so that
-- it is not deleted before the new one keeps it; if it is gone, the start is refused as 'gone'.
--
-- `run_id` is the run that the start leads to. `refused` is null, 'singleton' or 'debounce'
-- (`run_id` is the other run) or 'throttle' (`until` is the moment from which a start is possible).
-- Notices are (topic, payload).
-- Refuses rules that are not allowed (22023).
-- Locks: the run in `after`, FOR KEY SHARE; rows of start_keys, debounce before singleton before
-- throttle; the turn row of a run that waits for quiet; the id that it inserts. Expects the turn
-- row of the parent locked. Called by start_one and _start_ruled_runs.
create or replace function holdfast._start_ruled(
    p_now timestamptz, p_new holdfast._start,
    out run_id uuid, out created boolean, out status text, out refused text,
    out until timestamptz, out notices text[]
)
language plpgsql
as $$
declare
    v_rules holdfast.start_rules := holdfast._rules_of(p_new.name, p_new.rules);
    v_debounce text;
    v_waiting uuid;
    v_since timestamptz;
    v_not_before timestamptz;
    v_singleton text;
    v_other uuid;
    v_is_new boolean;
    v_slot timestamptz;
    v_is_excess boolean;
begin
    run_id := p_new.run_id;
    created := false;
    select d.* into p_new.queue, p_new.priority, p_new.timeout, p_new.retention
    from holdfast._with_declared(
        p_new.name, p_new.queue, p_new.priority, p_new.timeout, p_new.retention) as d;
    if p_new.rules ->> 'after' is not null
        and not holdfast._hold_runs(array[(p_new.rules ->> 'after')::uuid])
    then
        refused := 'gone';
        return;
    end if;
    if v_rules.debounce_seconds is not null then
        v_debounce := holdfast._key_of(coalesce(p_new.input, 'null'), v_rules.debounce_key);
        select d.run_id, d.since, d.not_before into v_waiting, v_since, v_not_before
        from holdfast._find_debounced(p_now, p_new.name, v_debounce) as d;
    end if;
    if v_rules.singleton_conflict is not null then
        v_singleton := holdfast._key_of(coalesce(p_new.input, 'null'), v_rules.singleton_key);
    end if;
    -- After the locks: another start with this id may have been first.
    select r.status into status from holdfast.runs r where r.run_id = p_new.run_id;
    if found then
        return;
    end if;
    if v_waiting is not null then
        run_id := v_waiting;
        status := 'running';
        if p_new.parent_run_id is not null then
            refused := 'debounce';
            return;
        end if;
        perform holdfast._merge_debounced(
            v_rules, p_now, run_id, v_debounce, v_since, v_not_before, p_new);
        return;
    end if;

    if v_singleton is not null then
        select s.other, s.is_new into v_other, v_is_new
        from holdfast._take_singleton(p_new.name, v_singleton, p_new.run_id) as s;
        select r.status into status from holdfast.runs r where r.run_id = p_new.run_id;
        if found then
            if v_is_new then
                perform holdfast._drop_singleton(p_new.name, v_singleton);
            end if;
            return;
        end if;
        if v_other is not null and v_rules.singleton_conflict <> 'queue' then
            run_id := v_other;
            status := 'running';
            if v_rules.singleton_conflict = 'refuse' or p_new.parent_run_id is not null then
                refused := 'singleton';
            end if;
            return;
        end if;
    end if;
    if v_rules.throttle_limit is not null then
        select s.at, s.refused into v_slot, v_is_excess
        from holdfast._take_slot(v_rules, p_now, p_new.name,
            holdfast._key_of(coalesce(p_new.input, 'null'), v_rules.throttle_key)) as s;
        if v_is_excess then
            if v_is_new then
                perform holdfast._drop_singleton(p_new.name, v_singleton);
            end if;
            refused := 'throttle';
            until := v_slot;
            return;
        end if;
        if v_slot > p_new.visible_at then
            p_new.visible_at := v_slot;
            p_new.awaiting := ':throttle';
        end if;
    end if;
    if v_debounce is not null then
        p_new.visible_at := greatest(
            p_new.visible_at, holdfast._end_of_quiet(v_rules, p_now, p_now));
        p_new.awaiting := ':debounce';
        update holdfast.start_keys k
        set run_id = p_new.run_id, since = p_now, not_before = v_slot,
            expires_at = p_new.visible_at
        where k.rule = 'debounce' and k.name = p_new.name and k.key = v_debounce;
    end if;
    if v_other is not null then
        perform holdfast._join_singleton(
            p_new.name, v_singleton, p_new.run_id, p_new.visible_at, p_new.timeout);
        p_new.visible_at := 'infinity';
        p_new.awaiting := ':singleton';
    end if;
    p_new.singleton_key := v_singleton;
    status := 'running';
    created := p_new.run_id = any (holdfast._start_runs(p_now, array[p_new]));
    notices := array[array[
        case when p_new.visible_at <= p_now then 'starts' else 'work' end, p_new.queue]];
end $$;

-- Return what is said of a start that a rule refused: the same as holdfast.errors says. Called by
-- _refuse_start and _start_ruled_runs.
create or replace function holdfast._refusal(
    p_name text, p_refused text, p_run_id uuid, p_until timestamptz
) returns text
language sql stable
as $$
    select case p_refused
        when 'singleton' then format('run %s of workflow %s is active with the same key: '
            'wait for its end, or cancel it', p_run_id, p_name)
        when 'gone' then format('run %s does not exist any more, and nothing can start after it: '
            'start the key without it', p_run_id)
        when 'debounce' then format('run %s of workflow %s waits for a quiet time with the same '
            'key, and a child is not shared: start it without the parent', p_run_id, p_name)
        else format('workflow %s has been started as often as its throttle allows: start it again '
            'after %s', p_name, to_char(p_until at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS')
                || '+00:00') end
$$;

-- Refuse a start with the error for what refused it: another run (HF006, with the run as detail) or
-- a throttle (HF007, with the moment from which a start is possible, in microseconds). Called by
-- start_one.
create or replace function holdfast._refuse_start(
    p_name text, p_refused text, p_run_id uuid, p_until bigint
) returns void
language plpgsql immutable
as $$
declare
    v_why text := holdfast._refusal(p_name, p_refused, p_run_id, holdfast._moment(p_until));
begin
    if p_refused in ('singleton', 'gone') then
        raise exception using errcode = 'HF006', detail = p_run_id, message = v_why;
    end if;
    raise exception using errcode = 'HF007', detail = p_until, message = v_why;
end $$;

-- Return by what starts are ordered that lock the keys of their rules one after another: all who do
-- so use this order, otherwise they could wait for each other. Called by _start_each and
-- _start_ruled_runs.
create or replace function holdfast._lock_order(
    p_name text, p_input json, p_rules holdfast.start_rules
) returns text[]
language sql stable
as $$
    select array[p_name, holdfast._key_of(i.input, p_rules.debounce_key),
        holdfast._key_of(i.input, p_rules.singleton_key),
        holdfast._key_of(i.input, p_rules.throttle_key)]
    from (select coalesce(p_input, 'null') as input) as i
$$;

-- Start runs one by one, as start_runs does if some of them have rules. Runs with the same keys are
-- started in the order given. A delay that ends after the last moment ends at it. Locks: as
-- start_one, by the keys of singletons. Called by _start_all.
create or replace function holdfast._start_each(p_starts holdfast._start[], p_outcomes boolean)
returns table (run_id uuid, created boolean, status text, told boolean, refused text,
    refused_until bigint)
language plpgsql
as $$
begin
    return query
    with started as materialized (
        select u.ordinality, s.*
        from (
            select u.* from unnest(p_starts) with ordinality as u
            cross join lateral holdfast._rules_of(u.name, u.rules) as r
            order by holdfast._lock_order(u.name, u.input, r), u.ordinality
        ) as u
        cross join lateral holdfast.start_one(u.run_id, u.name, u.input, u.version, u.key, u.queue,
            u.priority, least(holdfast._micros(u.visible_at), 10000000000000000), null, u.timeout,
            u.retention, u.tags, u.headers, u.waiter, null, u.rules, p_outcomes) as s
    )
    select s.run_id, s.created, s.status, s.told, s.refused, s.refused_until
    from started s order by s.ordinality;
end $$;

-- Start runs of workflows that have rules, if the caller is not told of each. Runs with the same
-- keys are started in the order given. `created` are the new ids. `errors` is parallel to the runs:
-- why a rule refused a run, as it is recorded, else null. `leads` are the runs that starts led to,
-- of the ids in `asked`. Notices are (topic, payload).
-- Locks: as _start_ruled, by name and keys; expects the turn rows of the parents locked. Called by
-- _start_ruled_children, _start_ruled_steps and _start_ticks.
create or replace function holdfast._start_ruled_runs(
    p_now timestamptz, p_starts holdfast._start[],
    out created uuid[], out errors json[], out asked uuid[], out leads uuid[], out notices text[]
)
language plpgsql
as $$
declare
    v_place int;
    v_new holdfast._start;
    v_started record;
begin
    created := '{}';
    errors := array_fill(null::json, array[cardinality(p_starts)]);
    for v_place in
        select u.ordinality from unnest(p_starts) with ordinality as u
        cross join lateral holdfast._rules_of(u.name, u.rules) as r
        order by holdfast._lock_order(u.name, u.input, r), u.ordinality
    loop
        v_new := p_starts[v_place];
        select * into v_started from holdfast._start_ruled(p_now, v_new);
        notices := notices || v_started.notices;
        asked := asked || v_new.run_id;
        leads := leads || v_started.run_id;
        if v_started.created then
            created := created || v_new.run_id;
        elsif v_started.refused is not null then
            errors[v_place] := json_build_object(
                'kind', 'holdfast.errors.' || case v_started.refused
                    when 'throttle' then 'StartThrottled' else 'RunActive' end,
                'message', holdfast._refusal(v_new.name, v_started.refused, v_started.run_id,
                    v_started.until));
        end if;
    end loop;
end $$;

-- Start children of workflows that have rules. A run that asked for a child which a rule refuses is
-- told. Returns the ids that were new, and (topic, payload) notices.
-- Locks: as _start_ruled_runs; the events of the parents, run by run. Called by _start_children.
create or replace function holdfast._start_ruled_children(
    p_now timestamptz, p_starts holdfast._start[], out created uuid[], out notices text[]
)
language plpgsql
as $$
declare
    v_started record;
    v_refused record;
begin
    select * into v_started from holdfast._start_ruled_runs(p_now, p_starts);
    created := v_started.created;
    notices := v_started.notices;
    for v_refused in
        select u.run_id, u.parent_run_id, u.parent_key,
            u.unnest as error  -- the second list has the name of the function
        from rows from (unnest(p_starts), unnest(v_started.errors)) with ordinality as u
        where u.unnest is not null
        order by u.parent_run_id, u.ordinality
    loop
        notices := notices || holdfast._refuse_child(p_now, v_refused.parent_run_id,
            v_refused.parent_key, v_refused.run_id,
            replace(v_refused.error ->> 'kind', 'holdfast.errors.', ''),
            v_refused.error ->> 'message');
    end loop;
end $$;

-- Start runs of workflows that have rules as steps of flows. A step that a rule refuses fails for
-- good. Returns (topic, payload) notices.
-- Locks: as _start_ruled_runs, then as _end_child_steps. Called by _start_child_steps.
create or replace function holdfast._start_ruled_steps(
    p_now timestamptz, p_starts holdfast._start[]
) returns text[]
language plpgsql
as $$
declare
    v_started record;
    v_refused record;
begin
    select * into v_started from holdfast._start_ruled_runs(p_now, p_starts);
    select array_agg(u.parent_run_id) as parents, array_agg(u.parent_key) as keys,
        array_agg(u.unnest) as errors
    into v_refused
    from rows from (unnest(p_starts), unnest(v_started.errors)) as u
    where u.unnest is not null;
    if v_refused.parents is null then
        return v_started.notices;
    end if;
    return v_started.notices || holdfast._end_child_steps(
        p_now, v_refused.parents, v_refused.keys, null, v_refused.errors, false);
end $$;
