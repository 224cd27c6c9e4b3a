-- What starts leave out, as the code of their workflows and flows has declared it.

-- Record the options of an app's workflows and flows. The arrays are parallel: names with their
-- app, the highest versions that a program has, how many seconds ended runs are kept, queues,
-- priorities, and the seconds of time limits (null for none). Without p_queues the last three stay.
-- What a program of a higher version has declared stays, and nothing is written that is there
-- already. Refuses values that are not allowed (22004, 22023).
-- Locks: rows of declared_retentions, by name. Called by workers that sign on.
create or replace function holdfast.declare_options(
    p_names text[], p_versions int[], p_retentions float8[], p_queues text[],
    p_priorities int[], p_timeouts float8[]
) returns void
language plpgsql
as $$
declare
    v_each record;
begin
    for v_each in
        select u.* from unnest(p_names, p_versions, p_retentions, p_queues, p_priorities,
            p_timeouts) as u (name, version, retention, queue, priority, timeout)
        order by u.name
    loop
        perform holdfast._check_name('a workflow', v_each.name);
        perform holdfast._check_given('a version', v_each.version is not null);
        perform holdfast._check_version(v_each.version);
        perform holdfast._check_given('a retention', v_each.retention is not null);
        perform holdfast._check_seconds('a retention', v_each.retention);
        perform holdfast._check_name('a queue', coalesce(v_each.queue, 'default'));
        perform holdfast._check_priority(v_each.priority);
        perform holdfast._check_seconds('a time limit', v_each.timeout);
        insert into holdfast.declared_retentions as d (
            name, version, seconds, queue, priority, timeout_seconds)
        values (v_each.name, v_each.version, v_each.retention, v_each.queue, v_each.priority,
            v_each.timeout)
        on conflict (name) do update
        set version = excluded.version, seconds = excluded.seconds,
            queue = case when p_queues is null then d.queue else excluded.queue end,
            priority = case when p_queues is null then d.priority else excluded.priority end,
            timeout_seconds = case when p_queues is null then d.timeout_seconds
                else excluded.timeout_seconds end
        where d.version < excluded.version or (d.version = excluded.version
            and (d.seconds <> excluded.seconds or (p_queues is not null
                and (d.queue, d.priority, d.timeout_seconds) is distinct from
                    (excluded.queue, excluded.priority, excluded.timeout_seconds))));
    end loop;
end $$;

-- Record how long ended runs are kept, as declare_options does. Refuses and locks what that does.
-- Called by workers of an earlier release that sign on.
create or replace function holdfast.declare_retentions(
    p_names text[], p_versions int[], p_seconds float8[]
) returns void
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    perform holdfast.declare_options(p_names, p_versions, p_seconds, null, null, null);
end $$;

-- Return the options of a start, with those that it leaves out as the code has declared them, else
-- 'default', 2 and 30 days: the queue, the priority, and the seconds of its time limit and of its
-- retention. A start that has all but the time limit knows the code: its null means no limit.
-- Locks nothing. Called by start_one, _start_ruled, _start_runs, _start_plain_flow and
-- _start_flows.
create or replace function holdfast._with_declared(
    p_name text, inout queue text, inout priority int, inout timeout float8,
    inout retention float8
)
language plpgsql stable
as $$
#variable_conflict use_variable
declare
    v_declared record;
begin
    if num_nulls(queue, priority, retention) = 0 then
        return;
    end if;
    select d.queue, d.priority, d.timeout_seconds, d.seconds into v_declared
    from holdfast.declared_retentions d where d.name = p_name;
    queue := coalesce(queue, v_declared.queue, 'default');
    priority := coalesce(priority, v_declared.priority, 2);
    timeout := coalesce(timeout, v_declared.timeout_seconds);
    retention := coalesce(retention, v_declared.seconds, 2592000);
end $$;

-- Return the queue of a run, for the notice of a start that left it out. Locks nothing. Called by
-- _start_children, _start_ticks, _start_subscribed and queues_of_runs.
create or replace function holdfast._queue_of(p_run_id uuid) returns text
language sql stable
as $$
    select r.queue from holdfast.runs r where r.run_id = p_run_id
$$;

-- Return the queues of runs, each once, for the notices of who started them and left the queue
-- out. Locks nothing. Called by clients.
create or replace function holdfast.queues_of_runs(p_run_ids uuid[])
returns table (queue text)
language sql stable
as $$
    select distinct holdfast._queue_of(u.run_id) from unnest(p_run_ids) as u (run_id)
$$;
