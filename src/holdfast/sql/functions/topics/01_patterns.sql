-- Patterns, topics and conditions: how they are written, and how they are found.
--
-- A topic is segments with dots between them: `invoices.17.paid`. In a pattern, `*` stands for one
-- segment, and `#` for any number of them, also none.

-- Refuse what is not a topic (22023), and a null (22004). Called by publish, list_subscriptions,
-- count_subscriptions, _check_sender and declare_alerts.
create or replace function holdfast._check_topic(p_topic text) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('the topic', p_topic is not null);
    if octet_length(p_topic) > 255
        or p_topic !~ E'^[a-zA-Z0-9_-]+(\\.[a-zA-Z0-9_-]+)*$'
    then
        raise invalid_parameter_value using message = format(
            '%s is not a topic: it is segments of the characters a-z, A-Z, 0-9, "_" and "-", with '
            'dots between them, 255 in all', quote_literal(left(p_topic, 300)));
    end if;
end $$;

-- Refuse what is not a pattern (22023), and a null (22004). Called by _check_subscription.
create or replace function holdfast._check_pattern(p_pattern text) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('the pattern', p_pattern is not null);
    if octet_length(p_pattern) > 255
        or p_pattern !~ E'^([a-zA-Z0-9_-]+|[*]|#)(\\.([a-zA-Z0-9_-]+|[*]|#))*$'
    then
        raise invalid_parameter_value using message = format(
            '%s is not a pattern: it is segments with dots between them, 255 characters in all; a '
            'segment is "*" (any one), "#" (any number of them), or of the characters a-z, A-Z, '
            '0-9, "_" and "-"', quote_literal(left(p_pattern, 300)));
    end if;
end $$;

-- Return the leaves of a JSON value: path and scalar, through objects only. What contains a
-- condition has its leaves. Equal numbers may have different digits: they are written in one way.
-- Called by _match_key and _reached.
create or replace function holdfast._leaves(p_value jsonb) returns text[]
language sql immutable parallel safe
as $$
    with recursive walk (path, value) as (
        select '', p_value
        union all
        select w.path || '.' || e.key, e.value
        from walk w
        cross join lateral jsonb_each(
            case when jsonb_typeof(w.value) = 'object' then w.value else '{}' end) as e
    ), leaves as (
        select w.path || '=' || case jsonb_typeof(w.value)
            when 'number' then trim_scale((w.value #>> '{}')::numeric)::text
            else w.value::text end as leaf
        from walk w
        where jsonb_typeof(w.value) in ('string', 'number', 'boolean') and w.path <> ''
    )
    select coalesce(array_agg(l.leaf), '{}') from leaves l where octet_length(l.leaf) <= 500
$$;

-- Return the leaf by which a condition is found: the longest; '' if it has none. Called by
-- _subscription and _subscribe_runs.
create or replace function holdfast._match_key(p_match jsonb) returns text
language sql immutable parallel safe
as $$
    select coalesce((
        select l.leaf from unnest(holdfast._leaves(p_match)) as l (leaf)
        order by octet_length(l.leaf) desc, l.leaf limit 1), '')
$$;

-- Return the paths of the patterns that fit a topic, among those that have subscriptions. They are
-- looked for segment by segment, in the index by path: below a path P, all paths lie from P to P
-- with its last dot replaced by the character after the dot. The cost depends on the number of
-- segments, not on that of the subscriptions.
-- Locks nothing. Called by _reached, list_subscriptions and count_subscriptions.
create or replace function holdfast._fitting_paths(p_topic text) returns text[]
language plpgsql stable
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_segments text[] := string_to_array(p_topic, '.');
    v_length int := cardinality(v_segments);
begin
    return array(
        with recursive walk (path, place, is_many) as (
            select '' collate "C", 0, false
            union
            select t.path, t.place, t.is_many
            from walk w
            cross join lateral (
                select w.path || c.segment || '.' as path, w.place + c.step as place,
                    c.step = 0 as is_many
                from (values (v_segments[w.place + 1], 1), ('*', 1), ('#', 0)) as c (segment, step)
                where w.place + c.step <= v_length and exists (
                    select from holdfast.subscriptions s
                    where s.path >= w.path || c.segment || '.'
                        and s.path < w.path || c.segment || '/')
                union all
                select w.path, w.place + 1, true where w.is_many and w.place < v_length
            ) as t
        )
        select distinct w.path from walk w where w.place = v_length and w.path <> '');
end $$;
