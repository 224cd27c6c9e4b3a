-- A run to start, as the functions that start runs hand it to each other.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (58, 'starts');

-- Its values are those of start_runs. From `visible_at` on it may run. A run with a moment of
-- 'infinity' waits for what `awaiting` says. `rules` are those that the start brings along.
create type holdfast._start as (
    run_id uuid, name text, input json, version int, key text, queue text, priority int,
    visible_at timestamptz, timeout float8, retention float8, tags json, headers json,
    parent_run_id uuid, parent_key text, parent_close text, waiter text, rules json,
    singleton_key text, awaiting text);

commit;
