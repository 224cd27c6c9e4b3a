-- Keys that are taken from inputs.

-- Return the key to which a path into an input leads: `input.customer` is the field `customer`. Of
-- several paths, with | in between, the first that leads to a value counts. A text is itself, any
-- other value its JSON text. Without a path, or where the input has no value or null, the key is
-- ''. Of a key with more than 200 bytes it is the SHA-256. Limits and rules for starts have this
-- one function. It does not check the path. The same in Python is holdfast/values/key_paths.py.
-- Called by _start_ruled, _lock_order, start_wait, _slot_of and _units_of.
create or replace function holdfast._key_of(p_input json, p_path text) returns text
language plpgsql immutable parallel safe
as $$
declare
    v_key text;
begin
    if p_path is null then
        return '';
    end if;
    if strpos(p_path, '|') = 0 then
        v_key := coalesce(p_input #>> (string_to_array(p_path, '.'))[2:], '');
    else
        v_key := coalesce((
            select v.value
            from unnest(string_to_array(p_path, '|')) with ordinality as p (path, place)
            cross join lateral (
                select p_input #>> (string_to_array(p.path, '.'))[2:] as value) as v
            where v.value is not null
            order by p.place limit 1), '');
    end if;
    if octet_length(v_key) > 200 then
        return encode(sha256(convert_to(v_key, 'UTF8')), 'hex');
    end if;
    return v_key;
end $$;
