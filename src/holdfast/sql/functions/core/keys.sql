-- Keys that are taken from inputs.

-- Return the key to which a path into an input leads: `input.customer` is the field `customer`. A
-- text is itself, any other value its JSON text. Without a path, or where the input has no value or
-- null, the key is ''. Of a key with more than 512 bytes it is the SHA-256. It does not check the
-- path. The same in Python is holdfast/key_paths.py. Called by _start_ruled, _lock_order and
-- start_wait.
create or replace function holdfast._key_of(p_input json, p_path text) returns text
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_key text;
begin
    if p_path is null then
        return '';
    end if;
    v_key := coalesce(p_input #>> (string_to_array(p_path, '.'))[2:], '');
    if octet_length(v_key) > 512 then
        return encode(sha256(convert_to(v_key, 'UTF8')), 'hex');
    end if;
    return v_key;
end $$;
