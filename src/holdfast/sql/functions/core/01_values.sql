-- Refuse values that would stop a run and others beside it if they were in a log: names that no
-- program can have, JSON that no reader can read, keys that no index can hold.
--
-- A refusal is null_value_not_allowed (22004) or invalid_parameter_value (22023). The functions
-- _is_… test cheaply that everything is right: most are single expressions, which PostgreSQL
-- inlines. Only if something is wrong, the functions _check_… find out what it is.

-- Return true if programs can have this name for a workflow, a queue or a signal. The length is
-- tested separately: with {1,128} in the pattern, each call would build so many states that it
-- costs more than a start.
create or replace function holdfast._is_name(p_name text) returns boolean
language sql immutable parallel safe
return octet_length(p_name) <= 128 and p_name ~ '^[a-zA-Z0-9._-]+$';

-- Return true if a text has the form of a workflow's name, with or without its app, of any length.
create or replace function holdfast._is_like_workflow(p_name text) returns boolean
language sql immutable parallel safe
return p_name ~ '^([a-zA-Z0-9._-]+/)?[a-zA-Z0-9._-]+$';

-- Return true if programs can have this name for a workflow, with or without its app.
create or replace function holdfast._is_workflow(p_name text) returns boolean
language sql immutable parallel safe
return octet_length(p_name) <= 257 and octet_length(split_part(p_name, '/', 1)) <= 128
    and octet_length(split_part(p_name, '/', 2)) <= 128 and holdfast._is_like_workflow(p_name);

-- Return true if an index can hold this key or id.
create or replace function holdfast._is_id(p_id text) returns boolean
language sql immutable parallel safe
return octet_length(p_id) between 1 and 1024;

-- Return true if a JSON text is so short and plain that nothing in it can be wrong.
create or replace function holdfast._is_plain(p_value json) returns boolean
language sql stable parallel safe
return octet_length(p_value::text) <= 512 and strpos(p_value::text, E'\\u') = 0;

-- Return true if nothing in a longer JSON text can be wrong either: it has no escapes of
-- characters, and so few brackets that they cannot be nested too deep.
create or replace function holdfast._is_shallow(p_value json) returns boolean
language sql stable parallel safe
return octet_length(p_value::text) <= 65536 and strpos(p_value::text, E'\\u') = 0
    and 2 * octet_length(p_value::text) - octet_length(replace(p_value::text, '[', ''))
        - octet_length(replace(p_value::text, '{', '')) <= 256;

-- Return true if timestamps can hold a length of time in seconds.
create or replace function holdfast._is_seconds(p_seconds float8) returns boolean
language sql immutable parallel safe
return p_seconds between 0 and 1e10;

-- Return true if a moment, in microseconds since 1970, is within 317 years of 1970.
create or replace function holdfast._is_moment(p_at bigint) returns boolean
language sql immutable parallel safe
return p_at between -10000000000000000 and 10000000000000000;

-- Return what is wrong with a JSON text; null if nothing is. PostgreSQL can store json that it
-- cannot read: it does not decode escapes when it stores, and only its stack limits the depth.
-- Called by _check_json, _is_legible, _is_unreadable and _attributes_flaw.
create or replace function holdfast._json_flaw(p_value json, p_deepest int default 256)
returns text
language plpgsql immutable
as $$
declare
    v_text text := p_value;
    v_length int := octet_length(v_text);
begin
    if v_length > 16777216 then
        return 'takes more than 16 MiB';
    end if;
    if v_length > 512 and p_deepest < 2 * v_length - octet_length(replace(v_text, '[', ''))
        - octet_length(replace(v_text, '{', ''))
    then
        if jsonb_path_exists(v_text::jsonb, format(
            'strict $.**{%s} ? (@.type() == "array" || @.type() == "object")', p_deepest)::jsonpath)
        then
            return 'is nested more than 256 levels deep';
        end if;
    elsif strpos(v_text, E'\\u') > 0 then
        perform v_text::jsonb;
    end if;
    return null;
exception
    when untranslatable_character then
        return 'has a NUL character, which PostgreSQL cannot hold';
    when invalid_text_representation then
        return 'has a lone surrogate: it is not Unicode';
    when numeric_value_out_of_range then
        return 'has a number that nothing can hold';
    when program_limit_exceeded then
        return 'is nested more than 256 levels deep';
end $$;

-- Return true if every reader can read a JSON text.
create or replace function holdfast._is_legible(p_value json) returns boolean
language sql stable parallel safe
return p_value is not null
    and (holdfast._is_plain(p_value) or holdfast._is_shallow(p_value)
        or holdfast._json_flaw(p_value) is null);

-- Refuse what must not be null. Called by the other checks, and by functions that people call.
create or replace function holdfast._check_given(p_what text, p_is_given boolean) returns void
language plpgsql immutable
as $$
begin
    if p_is_given is not true then
        raise null_value_not_allowed using message = p_what || ' must not be null';
    end if;
end $$;

-- Refuse names that no program can have, and nulls. p_of is what is named: 'a signal'.
create or replace function holdfast._check_name(p_of text, p_name text) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('the name of ' || p_of, p_name is not null);
    if not (holdfast._is_name(p_name) or p_of = 'a workflow' and holdfast._is_workflow(p_name)) then
        raise invalid_parameter_value using message = format(
            '%s cannot be the name of %s: it takes 1 to 128 of the characters a-z, A-Z, 0-9, ".", '
            '"_" and "-"', quote_literal(left(p_name, 200)), p_of);
    end if;
end $$;

-- Refuse keys and ids that are empty, or that no index can hold. A null is allowed.
create or replace function holdfast._check_id(p_what text, p_id text) returns void
language plpgsql immutable
as $$
begin
    if not holdfast._is_id(p_id) then
        raise invalid_parameter_value using message = format(
            '%s takes 1 to 1,024 bytes, not %s', p_what, octet_length(p_id));
    end if;
end $$;

-- Refuse texts of more than 64 KiB. A null is allowed.
create or replace function holdfast._check_text(p_what text, p_text text) returns void
language plpgsql immutable
as $$
begin
    if octet_length(p_text) > 65536 then
        raise invalid_parameter_value using message = format(
            '%s takes %s bytes, more than 65,536', p_what, octet_length(p_text));
    end if;
end $$;

-- Refuse JSON that no reader can read, also for more than p_deepest levels, and a null.
create or replace function holdfast._check_json(
    p_what text, p_value json, p_deepest int default 256
) returns void
language plpgsql immutable
as $$
declare
    v_flaw text;
begin
    perform holdfast._check_given(p_what, p_value is not null);
    v_flaw := holdfast._json_flaw(p_value, p_deepest);
    if v_flaw is not null then
        raise invalid_parameter_value using message = p_what || ' ' || v_flaw;
    end if;
end $$;

-- Return true if a JSON text is an array of texts or an object of texts, as p_type says.
create or replace function holdfast._is_of_texts(p_type text, p_value json) returns boolean
language plpgsql immutable
as $$
begin
    -- Without a cast to jsonb, which cannot hold each number.
    return case
        when json_typeof(p_value) <> p_type or not holdfast._is_legible(p_value) then false
        when p_type = 'array' then not exists (
            select from json_array_elements(p_value) as e (value)
            where json_typeof(e.value) <> 'string')
        else not exists (
            select from json_each(p_value) as e where json_typeof(e.value) <> 'string') end;
end $$;

-- Refuse JSON that is not an array of texts or an object of texts, as p_type says. A null is
-- allowed.
create or replace function holdfast._check_texts(p_what text, p_type text, p_value json)
returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_json(p_what, coalesce(p_value, 'null'));
    if p_value is not null and not holdfast._is_of_texts(p_type, p_value) then
        raise invalid_parameter_value using message = format(
            '%s are a JSON %s of texts', p_what, p_type);
    end if;
end $$;

-- Refuse lengths of time that are negative, or longer than timestamps reach. A null is allowed.
create or replace function holdfast._check_seconds(p_what text, p_seconds float8) returns void
language plpgsql immutable
as $$
begin
    if not holdfast._is_seconds(p_seconds) then
        raise invalid_parameter_value using message = format(
            '%s is 0 to 10,000,000,000 seconds, not %s', p_what, p_seconds);
    end if;
end $$;

-- Return the number of rows that are asked for; null for all. Refuses a negative number (22023).
create or replace function holdfast._limit(p_limit int) returns int
language plpgsql immutable
as $$
begin
    if p_limit < 0 then
        raise invalid_parameter_value using message = format(
            'a limit is 0 or more rows, not %s', p_limit);
    end if;
    return p_limit;
end $$;

-- Refuse priorities outside 0 to 4. A null is allowed.
create or replace function holdfast._check_priority(p_priority int) returns void
language plpgsql immutable
as $$
begin
    if p_priority not between 0 and 4 then
        raise invalid_parameter_value using message = format(
            'a priority is 0 (most urgent) to 4, not %s', p_priority);
    end if;
end $$;

-- Return a moment, in microseconds. Refuses one that is centuries away; a null is allowed.
create or replace function holdfast._check_moment(p_what text, p_at bigint) returns bigint
language plpgsql immutable
as $$
begin
    if not holdfast._is_moment(p_at) then
        raise invalid_parameter_value using message = format(
            '%s is within 10,000,000,000 seconds of 1970, not at %s microseconds', p_what, p_at);
    end if;
    return p_at;
end $$;

-- Refuse versions that no workflow can have: 0 is that of activities. A null is allowed.
create or replace function holdfast._check_version(p_version int) returns void
language plpgsql immutable
as $$
begin
    if p_version < 1 then
        raise invalid_parameter_value using message = format(
            'a workflow''s version is 1 or more, not %s', p_version);
    end if;
end $$;

-- Return true if no worker could read an event: it was written before values were checked. A NUL
-- does not count: only PostgreSQL cannot read it. Called by _readable.
create or replace function holdfast._is_unreadable(p_event_type text, p_details json)
returns boolean
language plpgsql immutable
as $$
begin
    if p_details is null then
        return p_event_type in ('SignalReceived', 'ApprovalResolved');
    end if;
    return holdfast._json_flaw(p_details, 300) not like 'has a NUL%';
end $$;
