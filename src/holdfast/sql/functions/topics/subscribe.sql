-- Subscriptions of workflows, queues and URLs. Those of runs are commands: see waiting.sql.

-- Subscribe to the topics that fit a pattern. p_subscription is a JSON object with `pattern`,
-- `kind` ('workflow', 'queue' or 'url'), `target` (app/workflow, the name of a queue, a URL), and
-- if wanted `match`: what an event's payload must contain. Of a workflow also `version`, `queue`,
-- `priority`, `timeout`, `retention`, `tags` and `headers` of each start; of a URL `secret` and
-- `allow_inner`.
--
-- The same pattern, match and target are one subscription: `created` is false if it exists, and
-- then its other values are those of this call.
-- Refuses values that are not allowed (22004, 22023), and a message queue that does not exist
-- (HFQ01).
-- Locks: the subscription. Called by clients and users, in any transaction.
create or replace function holdfast.subscribe(
    p_subscription json, out subscription_id bigint, out created boolean
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_new holdfast.subscriptions := holdfast._subscription(p_subscription, holdfast.now());
begin
    select w.subscription_id, w.created into subscription_id, created
    from holdfast._write_subscription(v_new) as w;
end $$;

-- Return the row of a subscription to make. Refuses values that are not allowed (22004, 22023).
-- Called by subscribe and declare_subscriptions.
create or replace function holdfast._subscription(p_subscription json, p_now timestamptz)
returns holdfast.subscriptions
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_new holdfast.subscriptions;
    v_known constant text[] := array['pattern', 'kind', 'target', 'match', 'version', 'queue',
        'priority', 'timeout', 'retention', 'tags', 'headers', 'secret', 'allow_inner'];
    v_unknown text;
begin
    perform holdfast._check_given('the subscription', p_subscription is not null);
    perform holdfast._check_json('the subscription', p_subscription);
    begin
        v_new := json_populate_record(null::holdfast.subscriptions, p_subscription);
    exception
        when invalid_text_representation or numeric_value_out_of_range
            or untranslatable_character or datatype_mismatch
        then
            raise invalid_parameter_value using message =
                'the subscription has a value of another type: ' || sqlerrm;
    end;
    select min(k.name) into v_unknown
    from json_object_keys(p_subscription) as k (name)
    where k.name <> all (v_known);
    if v_unknown is not null then
        raise invalid_parameter_value using message = format(
            'a subscription has no %L: it has %s', v_unknown, array_to_string(v_known, ', '));
    end if;
    v_new.subscription_id := nextval(
        pg_get_serial_sequence($n$holdfast.subscriptions$n$, 'subscription_id'));
    v_new.match := nullif(v_new.match, 'null');
    v_new.match_digest := coalesce(md5(v_new.match::text), '');
    v_new.match_key := holdfast._match_key(v_new.match);
    v_new.created_at := p_now;
    v_new.path := v_new.pattern || '.';
    if v_new.kind = 'url' then
        v_new.allow_inner := coalesce(v_new.allow_inner, false);
    end if;
    perform holdfast._check_subscription(v_new);
    return v_new;
end $$;

-- Refuse subscriptions that have a value that is not allowed (22004, 22023). Called by
-- _subscription.
create or replace function holdfast._check_subscription(p_new holdfast.subscriptions) returns void
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    perform holdfast._check_pattern(p_new.pattern);
    perform holdfast._check_given('the kind', p_new.kind is not null);
    perform holdfast._check_given('the target', p_new.target is not null);
    if octet_length(p_new.match::text) > 8192 then
        raise invalid_parameter_value using message = 'a match takes up to 8,192 bytes as JSON';
    end if;
    case p_new.kind
        when 'workflow' then
            perform holdfast._check_start(holdfast.new_run_id(), p_new.target, null, p_new.version,
                null, p_new.queue, p_new.priority, null, null, p_new.timeout, p_new.retention,
                p_new.tags, p_new.headers, null);
        when 'queue' then
            perform holdfast._queue(p_new.target);
        when 'url' then
            perform holdfast._check_given('the secret', p_new.secret is not null);
            if octet_length(p_new.target) > 2048 or p_new.target !~ (
                E'^https?://(\\[[0-9a-fA-F:.]+\\]|[a-zA-Z0-9._-]+)'
                '(:[0-9]{1,5})?([/?][!-"$-~]*)?$')
            then
                raise invalid_parameter_value using message = format(
                    '%s is not a URL for events: it is http or https, a host, and if wanted a '
                    'port, a path and a query, 2,048 characters in all; names and passwords have '
                    'no place in it', quote_literal(left(p_new.target, 200)));
            end if;
            if octet_length(p_new.secret) not between 16 and 1024 then
                raise invalid_parameter_value using message = format(
                    'a secret takes 16 to 1,024 bytes, not %s', octet_length(p_new.secret));
            end if;
        else
            raise invalid_parameter_value using message = format(
                'a subscription is of a workflow, a queue or a url, not of a %s',
                quote_literal(left(p_new.kind, 40)));
    end case;
end $$;

-- Insert a subscription, or give one that exists the new values. Locks: the subscription. Called by
-- subscribe and declare_subscriptions.
create or replace function holdfast._write_subscription(
    p_new holdfast.subscriptions, out subscription_id bigint, out created boolean
)
language plpgsql
as $$
#variable_conflict use_column
begin
    insert into holdfast.subscriptions as s select p_new.*
    on conflict (kind, target, path, match_digest) where run_id is null do update
    set version = excluded.version, queue = excluded.queue, priority = excluded.priority,
        timeout = excluded.timeout, retention = excluded.retention, tags = excluded.tags,
        headers = excluded.headers, secret = excluded.secret, allow_inner = excluded.allow_inner
    returning s.subscription_id, s.subscription_id = p_new.subscription_id
    into subscription_id, created;
end $$;

-- Remove a subscription. Returns false if there is none, or if it is that of a run. What it started
-- stays; what was not yet delivered to a URL is not delivered. Locks: the subscription, deliveries.
-- Called by clients and users, in any transaction.
create or replace function holdfast.unsubscribe(p_subscription_id bigint) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    delete from holdfast.subscriptions s
    where s.subscription_id = p_subscription_id and s.run_id is null;
    if not found then
        return false;
    end if;
    delete from holdfast.http_deliveries d where d.subscription_id = p_subscription_id;
    return true;
end $$;

-- Declare what the code of an app is subscribed to; workers call it when they start, and again and
-- again. p_subscriptions is a JSON array of what subscribe takes.
--
-- What is declared counts as long as any worker declares it: while a release is replaced by the
-- next, the subscriptions of both hold. One that no worker has declared for 90 seconds, while
-- others of the app are there, is paused by 'code', and resumed when a worker declares it again. It
-- is not paused if the database was away meanwhile: no worker could declare it then.
-- The results are patterns: of those that were added, paused and resumed.
-- Refuses what subscribe does. Locks: the subscriptions of the app, skipping what others hold.
-- Called by workers.
create or replace function holdfast.declare_subscriptions(
    p_app text, p_subscriptions json,
    out added text[], out paused text[], out resumed text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_now timestamptz := holdfast.now();
    v_new holdfast.subscriptions;
    v_old holdfast.subscriptions;
    v_item json;
begin
    perform holdfast._check_name('an app', p_app);
    for v_item in
        select i.item from json_array_elements(coalesce(p_subscriptions, '[]')) as i (item)
        order by i.item ->> 'target', i.item ->> 'pattern', i.item ->> 'match'
    loop
        v_new := holdfast._subscription(v_item, v_now);
        select * into v_old from holdfast.subscriptions s
        where s.kind = v_new.kind and s.target = v_new.target and s.path = v_new.path
            and s.match_digest = v_new.match_digest and s.run_id is null;
        v_new.app := p_app;
        v_new.heard_at := v_now;
        if v_old.subscription_id is null then
            if (select w.created from holdfast._write_subscription(v_new) as w) then
                added := added || v_new.pattern;
            end if;
        elsif v_old.app is null or v_old.heard_at < v_now - interval '15 seconds'
            or v_old.paused_by = 'code'
            or (v_old.version, v_old.queue, v_old.priority, v_old.timeout, v_old.retention,
                v_old.tags::text, v_old.headers::text)
            is distinct from (v_new.version, v_new.queue, v_new.priority, v_new.timeout,
                v_new.retention, v_new.tags::text, v_new.headers::text)
        then
            perform holdfast._write_subscription(v_new);
            update holdfast.subscriptions s
            set app = p_app, heard_at = v_now,
                paused_at = case when s.paused_by <> 'code' then s.paused_at end,
                paused_by = case when s.paused_by <> 'code' then s.paused_by end
            where s.subscription_id = v_old.subscription_id;
            if v_old.paused_by = 'code' then
                resumed := resumed || v_new.pattern;
            end if;
        end if;
    end loop;
    with gone as (
        update holdfast.subscriptions s set paused_at = v_now, paused_by = 'code'
        where s.subscription_id in (
            select o.subscription_id from holdfast.subscriptions o
            where o.app = p_app and o.heard_at < v_now - interval '90 seconds'
                and o.paused_at is null and holdfast._can_tell_gone(o.app, v_now, false)
            for update skip locked)
        returning s.pattern
    )
    select array_agg(g.pattern order by g.pattern) into paused from gone g;
end $$;

-- List subscriptions, oldest first: with p_kind those of a kind, else all but those of runs; with
-- p_topic those that an event of the topic would reach if it fitted their conditions. p_after is
-- the id after which the list begins. Locks nothing. Called by clients.
create or replace function holdfast.list_subscriptions(
    p_kind text default null, p_topic text default null, p_after bigint default 0,
    p_limit int default 100
) returns table (
    subscription_id bigint, pattern text, match json, kind text, target text, version int,
    queue text, priority int, timeout float8, retention float8, tags json, headers json,
    allow_inner boolean, run_id uuid, app text, paused_at bigint, paused_by text,
    created_at bigint, attributes json
)
language plpgsql stable
reset enable_seqscan
set plan_cache_mode = force_custom_plan
as $$
declare
    v_paths text[];
begin
    if p_topic is not null then
        perform holdfast._check_topic(p_topic);
        v_paths := holdfast._fitting_paths(p_topic);
    end if;
    return query
    select s.subscription_id, s.pattern, s.match::json, s.kind, s.target, s.version, s.queue,
        s.priority::int, s.timeout, s.retention,
        case when s.tags is not null then to_json(holdfast._tags(s.tags)) end, s.headers,
        s.allow_inner, s.run_id, s.app,
        holdfast._micros(s.paused_at), s.paused_by, holdfast._micros(s.created_at),
        case json_typeof(s.tags) when 'object' then s.tags -> 'attributes' end
    from holdfast.subscriptions s
    where s.subscription_id > p_after and (p_topic is null or s.path = any (v_paths))
        and case when p_kind is null then s.run_id is null else s.kind = p_kind end
    order by s.subscription_id
    limit holdfast._limit(p_limit);
end $$;

-- Count the subscriptions of each kind that an event of a topic would reach, apart from their
-- conditions and pauses. Locks nothing. Called by clients.
create or replace function holdfast.count_subscriptions(p_topic text)
returns table (kind text, subscriptions bigint)
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    perform holdfast._check_topic(p_topic);
    return query
    select s.kind, count(*) from holdfast.subscriptions s
    where s.path = any (holdfast._fitting_paths(p_topic)) group by s.kind order by s.kind;
end $$;

-- Delete what has no meaning any more: subscriptions of runs that have ended, ids of events that
-- were published more than an hour ago, and deliveries that were published while their subscription
-- was being removed; p_limit of each at most. Returns how many.
-- Locks: their rows, skipping what others hold. Called by workers.
create or replace function holdfast.sweep_topics(p_limit int default 1000) returns int
language plpgsql
reset plan_cache_mode
as $$
declare
    v_now timestamptz := holdfast.now();
    v_gone int;
    v_orphans int;
begin
    delete from holdfast.published_events e
    where e.event_id in (
        select o.event_id from holdfast.published_events o
        where o.expires_at <= v_now order by o.expires_at limit holdfast._limit(p_limit)
        for update skip locked);
    get diagnostics v_gone = row_count;
    delete from holdfast.http_deliveries d
    where d.delivery_id in (
        select o.delivery_id from holdfast.http_deliveries o
        where not exists (
            select from holdfast.subscriptions s where s.subscription_id = o.subscription_id)
        order by o.delivery_id limit p_limit
        for update skip locked);
    get diagnostics v_orphans = row_count;
    return v_gone + v_orphans + holdfast._forget_subscriptions(null, p_limit);
end $$;
