-- Attributes and tags: what lists find runs by. Both may change while a run is open, and after its
-- end. No codec encodes them.
--
-- A start takes both in one value, p_tags: a JSON array of tags, or an object with `tags` and
-- `attributes`. Whatever keeps a start for later (a schedule, a subscription, a debounce) keeps it.

-- Return what is wrong with attributes; null if nothing is. With p_removes, a null removes one.
-- Called by _are_labels, _check_labels and set_attributes.
create or replace function holdfast._attributes_flaw(p_attributes json, p_removes boolean)
returns text
language plpgsql immutable
as $$
begin
    if octet_length(p_attributes::text) > 4096 then
        return format('take %s bytes, more than 4,096', octet_length(p_attributes::text));
    elsif json_typeof(p_attributes) is distinct from 'object' then
        return 'are a JSON object';
    elsif not holdfast._is_legible(p_attributes) then
        return holdfast._json_flaw(p_attributes);
    end if;
    return (
        select format(f.flaw, quote_literal(left(e.name, 200)))
        from json_each(p_attributes) as e (name, value)
        cross join lateral (
            select case
                when not holdfast._is_name(e.name) then '%s cannot be the name of one: it takes '
                    '1 to 128 of the characters a-z, A-Z, 0-9, ".", "_" and "-"'
                when e.name in ('workflow', 'state', 'queue', 'tag')
                    then '%s cannot be the name of one: runs are counted by it already'
                when json_typeof(e.value) in ('array', 'object')
                    or json_typeof(e.value) = 'null' and not p_removes
                    then '%s is not a text, a number or a boolean'
                when length(e.value #>> '{}') > 500 then '%s has more than 500 characters' end
        ) as f (flaw)
        where f.flaw is not null limit 1);
end $$;

-- Return true if tags and attributes of a start are allowed. Called by _are_start_values.
create or replace function holdfast._are_labels(p_tags json) returns boolean
language plpgsql immutable
as $$
begin
    if json_typeof(p_tags) <> 'object' then
        return holdfast._is_of_texts('array', p_tags);
    end if;
    return holdfast._is_legible(p_tags)
        and holdfast._is_of_texts('array', coalesce(p_tags -> 'tags', '[]'))
        and holdfast._attributes_flaw(coalesce(p_tags -> 'attributes', '{}'), false) is null;
end $$;

-- Refuse tags and attributes of a start that are not allowed (22023). A null is allowed. Called by
-- _check_start.
create or replace function holdfast._check_labels(p_tags json) returns void
language plpgsql immutable
as $$
declare
    v_flaw text;
begin
    if json_typeof(p_tags) is distinct from 'object' then
        if p_tags is not null then
            perform holdfast._check_texts('tags', 'array', p_tags);
        end if;
        return;
    end if;
    perform holdfast._check_json('tags', p_tags);
    perform holdfast._check_texts('tags', 'array', coalesce(p_tags -> 'tags', '[]'));
    v_flaw := holdfast._attributes_flaw(coalesce(p_tags -> 'attributes', '{}'), false);
    if v_flaw is not null then
        raise invalid_parameter_value using message = 'attributes: ' || v_flaw;
    end if;
end $$;

-- Return the tags of a start; none for a null. Called by what starts runs, and by lists of what
-- keeps starts.
create or replace function holdfast._tags(p_tags json) returns text[]
language plpgsql immutable
as $$
begin
    return array(select json_array_elements_text(
        case json_typeof(p_tags) when 'object' then p_tags -> 'tags' else p_tags end));
end $$;

-- Set the `attributes` of objects for runs, and remove those that are null. Of several values of
-- one name the last counts.
-- Locks: the attributes, by run_id and name. Called by set_attributes, restore_run, _add_attributes
-- and _carry_out.
create or replace function holdfast._set_attributes(p_run_ids uuid[], p_objects json[])
returns void
language plpgsql
as $$
begin
    with asked as materialized (
        select distinct on (u.run_id, e.name) u.run_id, e.name, e.value
        from unnest(p_run_ids, p_objects) with ordinality as u (run_id, object, place)
        cross join lateral json_each(u.object -> 'attributes') with ordinality
            as e (name, value, nth)
        order by u.run_id, e.name, u.place desc, e.nth desc
    ), removed as (
        delete from holdfast.attributes a
        using asked k
        where a.run_id = k.run_id and a.name = k.name and json_typeof(k.value) = 'null'
    )
    insert into holdfast.attributes as a (run_id, name, value, created_at)
    select k.run_id, k.name, k.value, r.created_at
    from asked k
    cross join lateral (
        select r.created_at from holdfast.runs r where r.run_id = k.run_id limit 1
    ) as r
    where json_typeof(k.value) <> 'null'
    order by k.run_id, k.name
    on conflict (run_id, name) do update set value = excluded.value
        where a.value::text <> excluded.value::text;
end $$;

-- Set the attributes of those runs of a start that it has created; of an id that was given twice,
-- those of its first. Locks: as _set_attributes. Called by start_one, _start_runs, _start_flows and
-- _merge_debounced.
create or replace function holdfast._add_attributes(
    p_created uuid[], p_run_ids uuid[], p_tags json[]
) returns void
language plpgsql
as $$
begin
    if not exists (select from unnest(p_tags) as u (tags) where json_typeof(u.tags) = 'object') then
        return;
    end if;
    perform holdfast._set_attributes(array_agg(f.run_id), array_agg(f.tags))
    from (
        select distinct on (u.run_id) u.run_id, u.tags
        from unnest(p_run_ids, p_tags) with ordinality as u (run_id, tags, place)
        join unnest(p_created) as c (run_id) on c.run_id = u.run_id
        order by u.run_id, u.place
    ) as f
    where json_typeof(f.tags) = 'object';
end $$;

-- Give runs the attributes that others have: those that continue them, forks and retries.
-- Locks: the attributes that it inserts. Called by _continue_runs, _start_fork and
-- _start_successor.
create or replace function holdfast._copy_attributes(p_from uuid[], p_to uuid[]) returns void
language plpgsql
as $$
begin
    insert into holdfast.attributes (run_id, name, value, created_at)
    select u.run_id, a.name, a.value, r.created_at
    from unnest(p_from, p_to) as u (origin, run_id)
    cross join lateral (
        select a.name, a.value from holdfast.attributes a where a.run_id = u.origin offset 0
    ) as a
    cross join lateral (
        select r.created_at from holdfast.runs r where r.run_id = u.run_id limit 1
    ) as r
    order by u.run_id, a.name
    on conflict do nothing;
end $$;

-- Return the attributes of a run as a JSON object, by name; null if it has none. Called by
-- set_attributes and export_runs.
create or replace function holdfast._attributes(p_run_id uuid) returns json
language plpgsql stable
as $$
begin
    return json_object_agg(a.name, a.value)
    from holdfast.attributes a where a.run_id = p_run_id;
end $$;

-- Lock a run, or the last one that it continued as, and return its id; null if there is none.
-- Locks: rows of runs FOR NO KEY UPDATE, along the chain: no end and no deletion comes in between.
-- Called by set_attributes and set_tags.
create or replace function holdfast._lock_newest(p_run_id uuid) returns uuid
language plpgsql
as $$
declare
    v_newest uuid;
    v_next uuid := p_run_id;
    v_run record;
begin
    loop
        select case r.status when 'continued' then (r.output ->> 'run_id')::uuid end as next
        into v_run
        from holdfast.runs r
        where r.run_id = v_next and r.delete_after is distinct from '-infinity'
        for no key update;
        exit when not found;
        v_newest := v_next;
        v_next := v_run.next;
    end loop;
    return v_newest;
end $$;

-- Set attributes of a run, or of the last one that it continued as, and remove those that are null.
-- Returns all attributes that it has then; null if there is no such run. Refuses values that are
-- not allowed, and more than 4,096 bytes in all (22004, 22023).
-- Locks: as _lock_newest; attributes, by name. Called by clients.
create or replace function holdfast.set_attributes(p_run_id uuid, p_attributes json) returns json
language plpgsql
as $$
declare
    v_run_id uuid;
    v_flaw text;
    v_all json;
    v_size int;
begin
    perform holdfast._check_given('the run id', p_run_id is not null);
    perform holdfast._check_given('the attributes', p_attributes is not null);
    v_flaw := holdfast._attributes_flaw(p_attributes, true);
    if v_flaw is not null then
        raise invalid_parameter_value using message = 'attributes: ' || v_flaw;
    end if;
    v_run_id := holdfast._lock_newest(p_run_id);
    if v_run_id is null then
        return null;
    end if;
    perform holdfast._set_attributes(
        array[v_run_id], array[json_build_object('attributes', p_attributes)]);
    v_all := coalesce(holdfast._attributes(v_run_id), '{}');
    v_size := (  -- without the spaces that PostgreSQL writes between them
        select 1 + sum(octet_length(e.name) + octet_length(e.value::text) + 4)
        from json_each(v_all) as e (name, value));
    if v_size > 4096 and exists (
        select from json_each(p_attributes) as e (name, value) where json_typeof(e.value) <> 'null')
    then
        raise invalid_parameter_value using message = format(
            'attributes: with these, run %s has %s bytes of them, more than 4,096: remove some',
            v_run_id, v_size);
    end if;
    return v_all;
end $$;

-- Change the tags of a run, or of the last one that it continued as: with p_tags to these, else to
-- those that it has, without those in p_remove, with those in p_add; all are JSON arrays. Returns
-- the tags that it has then; null if there is no such run. Refuses what is not an array of texts
-- (22023), and a null for the run (22004).
-- Locks: as _lock_newest. Called by clients.
create or replace function holdfast.set_tags(
    p_run_id uuid, p_tags json default null, p_add json default null, p_remove json default null
) returns text[]
language plpgsql
as $$
declare
    v_run_id uuid;
    v_tags text[];
begin
    perform holdfast._check_given('the run id', p_run_id is not null);
    perform holdfast._check_texts('tags', 'array', u.tags)
    from unnest(array[p_tags, p_add, p_remove]) as u (tags) where u.tags is not null;
    v_run_id := holdfast._lock_newest(p_run_id);
    update holdfast.runs r
    set tags = array(
        select u.tag
        from unnest(case when p_tags is null then r.tags else holdfast._tags(p_tags) end
            || holdfast._tags(p_add)) with ordinality as u (tag, place)
        where u.tag <> all (holdfast._tags(p_remove))
        group by u.tag
        order by min(u.place))
    where r.run_id = v_run_id
    returning r.tags into v_tags;
    return v_tags;
end $$;
