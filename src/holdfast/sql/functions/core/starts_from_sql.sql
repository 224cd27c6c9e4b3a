-- Start one run from SQL, in the caller's transaction: `select holdfast.start_run('shop/checkout',
-- '{"order": 1}')`. With a key every start finds the same run. A null for the queue, the priority,
-- the time limit or the retention means what the workflow's code has declared. The app may be left
-- out if only one has ever signed on with the name; otherwise that is refused (22023).
-- Workers find it when they look next; to wake them at once, notify them as well.
create or replace function holdfast.start_run(
    p_name text,
    p_input json default 'null',
    p_key text default null,
    p_queue text default null,
    p_version int default 1,
    p_priority int default null,
    p_delay_seconds float8 default 0,
    p_retention_seconds float8 default null,
    p_timeout_seconds float8 default null
) returns uuid
language sql
as $$
    select s.run_id
    from (select holdfast.full_name(p_name) as name) as n
    cross join lateral holdfast.start_one(
        coalesce(holdfast.keyed_run_id(n.name, p_key), holdfast.new_run_id()),
        n.name, p_input, p_version, p_key, p_queue, p_priority, null, p_delay_seconds,
        p_timeout_seconds, p_retention_seconds) as s
$$;
