-- Limits are set, removed and declared.

-- Set a limit on the tasks of a queue, a workflow or an activity, for all of them together or for
-- each value of a key. It holds for what is claimed from now on; what runs already counts, and is
-- not stopped. The kinds concurrency and rate of a queue also hold for the messages of the message
-- queue of that name, which count for themselves: in flight at once, or received. Kinds:
--
-- concurrency  p_most tasks at once. p_holds says how long one counts: 'turn', while a worker
--              executes it, or 'run', from the first claim of a run to its end. Default: 'run' for
--              a workflow, otherwise 'turn'.
-- rate         p_most begin in each p_period_seconds; with p_smooth, at even distances.
-- units        what begins in each p_period_seconds uses p_most units together. p_units is the path
--              of their number in the input, or 'call': then calls of an activity say it.
-- fairness     the tasks of each key in turn.
-- ageing       a task that waits counts as one priority more urgent for each p_period_seconds.
--
-- p_key is the path of the key in the input, 'input.customer'. Returns false if the limit was just
-- so. Refuses values that are not allowed, and a limit of the runs of a flow (22004, 22023).
-- Locks: the limit. Called by users and clients.
create or replace function holdfast.set_limit(
    p_scope text, p_name text, p_kind text, p_most int default null,
    p_period_seconds float8 default null, p_key text default null, p_holds text default null,
    p_smooth boolean default null, p_units text default null
) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_name text := holdfast._limit_name(p_scope, p_name);
    v_changed boolean;
begin
    perform holdfast._check_limit(
        p_scope, v_name, p_kind, p_most, p_period_seconds, p_key, p_holds, p_smooth, p_units);
    v_changed := holdfast._put_limit(p_scope, v_name, p_kind, p_most, p_period_seconds, p_key,
        p_holds, p_smooth, null, null, p_units);
    if v_changed then
        perform holdfast._tell_limited(p_scope, v_name);
    end if;
    return v_changed;
end $$;

-- Wake the workers of the queues in which tasks wait that a limit concerns, and who receives from
-- the message queue that it concerns, with this transaction: they may run now. Without a limit by
-- key, no message waits for one.
-- Locks: as _note_limits; messages of the queue and rows of groups; at the commit, the server's
-- lock for notifications. Called by all that change limits, which is rare.
create or replace function holdfast._tell_limited(p_scope text, p_name text) returns void
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    perform pg_notify(holdfast._channel(holdfast._schema(), 'work'), r.queue)
    from (
        select distinct r.queue from holdfast._limited_ranges() as r
        where holdfast._concerns(p_scope, p_name, r.queue, r.handler)
    ) as r;
    perform pg_notify(holdfast._channel(holdfast._schema(), 'messages/' || q.name), q.name)
    from holdfast.queues q where p_scope = 'queue' and q.name = p_name;
    if p_scope = 'queue' then
        perform holdfast._note_limits(p_name);
    end if;
    perform holdfast._let_go(q.queue_id, null)
    from holdfast.queues q
    where p_scope = 'queue' and q.name = p_name and not exists (
        select from holdfast._message_limits(p_name) as l where l.key <> '');
    update holdfast.limited_groups g set allowed_at = '-infinity'  -- receives look again
    where p_scope = 'queue' and g.queue_id = (
        select q.queue_id from holdfast.queues q where q.name = p_name);
end $$;

-- Return the name of what a limit concerns, with its app. Refuses a workflow that several apps
-- have, or none, and an activity without its app (22023). Called by set_limit and remove_limit.
create or replace function holdfast._limit_name(p_scope text, p_name text) returns text
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    if p_scope = 'activity' and strpos(p_name, '/') = 0 then
        raise invalid_parameter_value using message = format(
            'activity %s: name the app as well: APP/%s', left(p_name, 200), left(p_name, 200));
    end if;
    return case p_scope when 'workflow' then holdfast.full_name(p_name) else p_name end;
end $$;

-- Write a limit whose values are right. With p_app, its code declares the limit. Returns false if
-- nothing changed.
-- Locks: the limit. Called by set_limit and declare_limits.
create or replace function holdfast._put_limit(
    p_scope text, p_name text, p_kind text, p_most int, p_period_seconds float8, p_key text,
    p_holds text, p_smooth boolean, p_app text, p_declared json, p_units text
) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_now timestamptz := holdfast.now();
    v_limit holdfast.limits;
    v_is_new boolean;
    v_old_holds text;
    v_period interval := p_period_seconds * interval '1 second';
    v_holds text := case p_kind when 'concurrency' then coalesce(
        p_holds, case p_scope when 'workflow' then 'run' else 'turn' end) end;
    v_smooth boolean := case p_kind when 'rate' then coalesce(p_smooth, false) end;
begin
    select * into v_limit from holdfast.limits l
    where l.scope = p_scope and l.name = p_name and l.kind = p_kind
        and l.key = coalesce(p_key, '')
    for no key update;
    v_is_new := v_limit is null or v_limit.removed;
    v_old_holds := v_limit.holds;
    if not v_is_new and p_declared is null and (v_limit.most, v_limit.period, v_limit.holds,
        v_limit.smooth, v_limit.units)
        is not distinct from (p_most, v_period, v_holds, v_smooth, p_units)
    then
        return false;
    end if;
    insert into holdfast.limits as l (scope, name, kind, key, most, period, holds, smooth,
        units, declared, app, added_at, changed_at)
    values (p_scope, p_name, p_kind, coalesce(p_key, ''), p_most, v_period, v_holds, v_smooth,
        p_units, p_declared, p_app, v_now, v_now)
    on conflict (scope, name, kind, key) do update
    set most = excluded.most, period = excluded.period, holds = excluded.holds,
        smooth = excluded.smooth, units = excluded.units, removed = false,
        declared = coalesce(excluded.declared, l.declared), app = coalesce(excluded.app, l.app),
        added_at = case when l.removed or l.holds is distinct from excluded.holds
            then excluded.added_at else l.added_at end,
        changed_at = excluded.changed_at
    returning * into v_limit;
    if (v_is_new or v_old_holds <> v_holds) and p_kind = 'concurrency' then
        perform holdfast._count_present(v_limit);
    end if;
    return true;
end $$;

-- Let what runs already count for a limit that is new, or that something else holds now. Nothing
-- else counts: a run that has not begun may have held a place of the limit as it was. Messages in
-- flight count anyway; from now on, their ends are told.
-- Locks: expects the limit locked; rows of holders; deliveries, skipping locked ones. Called by
-- _put_limit.
create or replace function holdfast._count_present(p_limit holdfast.limits) returns void
language sql
as $$
    delete from holdfast.limit_holders h where h.limit_id = p_limit.limit_id;
    insert into holdfast.limit_holders (limit_id, slot, run_id, key)
    select p_limit.limit_id, holdfast._slot_of(case when t.handler like '%@0'
            then t.payload -> 'input'
            else (select r.input from holdfast.runs r where r.run_id = t.run_id) end, p_limit.key),
        t.run_id, t.key
    from holdfast.tasks t
    where holdfast._concerns(p_limit.scope, p_limit.name, t.queue, t.handler)
        and case p_limit.holds when 'turn' then t.worker is not null
            else t.key = '' and t.kind = 'workflow' and t.lease_no > 0 end
    on conflict do nothing;
    update holdfast.deliveries d set limited = true
    from (
        select d.queue_id, d.delivery_id from holdfast.queues q
        cross join lateral (
            select d.queue_id, d.delivery_id from holdfast.deliveries d
            where d.queue_id = q.queue_id for no key update skip locked
        ) as d
        where p_limit.scope = 'queue' and q.name = p_limit.name
    ) as f
    where d.queue_id = f.queue_id and d.delivery_id = f.delivery_id
$$;

-- Remove a limit. Returns false if there is none. Tasks that wait for it may run at once; the row
-- is deleted when none is left. A limit that code declares comes back only if the code changes it.
-- Refuses nulls (22004).
-- Locks: the limit. Called by users and clients.
create or replace function holdfast.remove_limit(
    p_scope text, p_name text, p_kind text, p_key text default null
) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_name text := holdfast._limit_name(p_scope, p_name);
begin
    perform holdfast._check_given('a scope', p_scope is not null);
    perform holdfast._check_given('a name', p_name is not null);
    perform holdfast._check_given('a kind', p_kind is not null);
    update holdfast.limits l set removed = true, changed_at = holdfast.now()
    where l.scope = p_scope and l.name = v_name and l.kind = p_kind
        and l.key = coalesce(p_key, '') and not l.removed;
    if found then
        perform holdfast._tell_limited(p_scope, v_name);
        return true;
    end if;
    return false;
end $$;

-- Write the limits that the code of an app declares: a JSON array of objects with the parameters of
-- set_limit, without p_. A limit that people have changed stays as they left it until the code
-- declares something else. Those that the app declared before, and does not now, are removed.
-- Returns how many were changed. Refuses what set_limit refuses.
-- Locks: the limits, in one order. Called by workers that sign on.
create or replace function holdfast.declare_limits(p_app text, p_limits json) returns int
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_changed int := 0;
    v_one record;
begin
    for v_one in
        select d.declared::text as declared, x.*, (
                select l.declared::text from holdfast.limits l
                where l.scope = x.scope and l.name = x.name and l.kind = x.kind
                    and l.key = coalesce(x.key, '')) as known
        from json_array_elements(p_limits) as d (declared)
        cross join lateral json_to_record(d.declared) as x (scope text, name text, kind text,
            most int, period_seconds float8, key text, holds text, smooth boolean, units text)
        order by x.scope, x.name, x.kind, x.key
    loop
        if v_one.known is distinct from v_one.declared then
            perform holdfast._check_limit(v_one.scope, v_one.name, v_one.kind, v_one.most,
                v_one.period_seconds, v_one.key, v_one.holds, v_one.smooth, v_one.units);
            perform holdfast._put_limit(v_one.scope, v_one.name, v_one.kind, v_one.most,
                v_one.period_seconds, v_one.key, v_one.holds, v_one.smooth, p_app,
                v_one.declared::json, v_one.units);
            perform holdfast._tell_limited(v_one.scope, v_one.name);
            v_changed := v_changed + 1;
        end if;
    end loop;
    for v_one in
        update holdfast.limits l set removed = true, declared = null, changed_at = holdfast.now()
        where l.app = p_app and l.declared is not null and not exists (
            select from json_array_elements(p_limits) as d (declared)
            where d.declared ->> 'scope' = l.scope and d.declared ->> 'name' = l.name
                and d.declared ->> 'kind' = l.kind
                and coalesce(d.declared ->> 'key', '') = l.key)
        returning l.scope, l.name
    loop
        perform holdfast._tell_limited(v_one.scope, v_one.name);
    end loop;
    return v_changed;
end $$;

-- Refuse a limit that cannot be, such as one of the runs of a flow. Called by set_limit and
-- declare_limits.
create or replace function holdfast._check_limit(
    p_scope text, p_name text, p_kind text, p_most int, p_period_seconds float8, p_key text,
    p_holds text, p_smooth boolean, p_units text
) returns void
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_flaw text;
begin
    perform holdfast._check_given('a scope', p_scope is not null);
    if p_scope not in ('queue', 'workflow', 'activity') then
        raise invalid_parameter_value using message = format(
            'a scope is queue, workflow or activity, not %s', quote_literal(left(p_scope, 200)));
    end if;
    perform holdfast._check_name(
        case p_scope when 'queue' then 'a queue' else 'a workflow' end, p_name);
    perform holdfast._check_given('a kind', p_kind is not null);
    v_flaw := case
        when p_kind not in ('concurrency', 'rate', 'units', 'fairness', 'ageing') then format(
            'a kind is concurrency, rate, units, fairness or ageing, not %s',
            quote_literal(left(p_kind, 200)))
        when p_kind in ('concurrency', 'rate', 'units') and coalesce(p_most, 0) < 1 then format(
            'a limit of the kind %s lets at least 1 task run: pause the %s to stop it', p_kind,
            p_scope)
        when p_kind in ('fairness', 'ageing') and p_most is not null then format(
            'a limit of the kind %s does not count tasks: leave out how many', p_kind)
        when p_kind in ('rate', 'units', 'ageing')
            and coalesce(p_period_seconds not between 0.001 and 1e9, true)
            then format('a limit of the kind %s has a period from 0.001 s to 1e9 s', p_kind)
        when p_kind in ('concurrency', 'fairness') and p_period_seconds is not null then format(
            'a limit of the kind %s does not have a period', p_kind)
        when p_kind = 'fairness' and coalesce(p_key, '') = '' then
            'fairness is between the values of a key: give its path'
        when p_kind = 'ageing' and coalesce(p_key, '') <> '' then
            'ageing does not have a key: it concerns all tasks'
        when p_key <> '' and not (
            select bool_and(holdfast._is_key_path(k.path))
            from unnest(string_to_array(p_key, '|')) as k (path)) then format(
            '%s is not a path into the input: write input.FIELD, such as input.customer, or input '
            'for the whole', quote_literal(left(p_key, 200)))
        when p_holds not in ('turn', 'run') then format(
            'a limit holds a turn or a run, not %s', quote_literal(left(p_holds, 200)))
        when p_holds is not null and p_kind <> 'concurrency' then
            'only a limit of the kind concurrency says what it holds'
        when p_holds = 'run' and p_scope = 'activity' then
            'a limit of an activity holds its attempts, not runs'
        when (p_units is not null) <> (p_kind = 'units') then
            'a limit of the kind units says what it counts, and no other does'
        when p_units = 'call' and p_scope <> 'activity' then
            'only calls of activities say their units: give a path into the input'
        when p_units <> 'call' and not (
            select bool_and(holdfast._is_key_path(k.path))
            from unnest(string_to_array(p_units, '|')) as k (path)) then format(
            '%s is not a path into the input: write input.FIELD, such as input.tokens',
            quote_literal(left(p_units, 200)))
        when p_smooth and p_kind <> 'rate' then 'only a limit of the kind rate can be smooth'
        end;
    if v_flaw is not null then
        raise invalid_parameter_value using message = v_flaw;
    end if;
    if p_scope = 'workflow' and p_kind = 'concurrency' and coalesce(p_holds, 'run') = 'run'
        and exists (select from holdfast.flows f where f.flow_slug = p_name)
    then
        raise invalid_parameter_value using message = format(
            '%s is a flow, and no worker holds a run of a flow: limit its steps, with a limit that '
            'holds a turn', p_name);
    end if;
end $$;
