-- Debounces: starts within a quiet time lead to one run, with the last input.
--
-- The run is there from the first start on, and comes due at the end of the quiet time. The row of
-- start_keys names it until then.

-- Return the run that waits for the quiet time of a key to end, with its turn locked; null if there
-- is none: then the row of the key is locked, and is the caller's to write.
-- Locks: the key's row; the turn row of the run, if it has not begun. Called by _start_ruled.
create or replace function holdfast._find_debounced(
    p_now timestamptz, p_name text, p_key text,
    out run_id uuid, out since timestamptz, out not_before timestamptz
)
language plpgsql
as $$
declare
    v_expires_at timestamptz;
begin
    select k.run_id, k.since, k.not_before, k.expires_at
    into run_id, since, not_before, v_expires_at
    from holdfast._lock_start_key('debounce', p_name, p_key, null) as k;
    -- Looked at twice: a run that has begun may be committing a start with this key, and would wait
    -- for this one; a claim that came before the lock is seen a statement later.
    for v_look in 1..2 loop
        if run_id is null or v_expires_at <= p_now or not exists (
            select from holdfast.tasks t
            where t.run_id = _find_debounced.run_id and t.key = '' and t.lease_no = 0)
        then
            run_id := null;
            return;
        end if;
        if v_look = 1 then
            perform holdfast._lock_turns(array[run_id]);
        end if;
    end loop;
end $$;

-- Return when a debounced run comes due: after the quiet time, but not after the longest wait.
-- Called by _start_ruled and _merge_debounced.
create or replace function holdfast._end_of_quiet(
    p_rules holdfast.start_rules, p_now timestamptz, p_since timestamptz
) returns timestamptz
language sql stable
return least(p_now + p_rules.debounce_seconds * interval '1 second',
    p_since + p_rules.debounce_max_wait_seconds * interval '1 second');

-- Give a run that waits for quiet what a further start asks for: its input and all its options. Its
-- id, its key and its creation stay.
-- Locks: expects the row of the key and the turn row locked; the run. Called by _start_ruled.
create or replace function holdfast._merge_debounced(
    p_rules holdfast.start_rules, p_now timestamptz, p_run_id uuid, p_debounce_key text,
    p_since timestamptz, p_not_before timestamptz, p_new holdfast._start
) returns void
language plpgsql
as $$
declare
    v_quiet_at timestamptz := holdfast._end_of_quiet(p_rules, p_now, p_since);
    v_due_at timestamptz := greatest(v_quiet_at, p_not_before, p_new.visible_at);
    v_waits boolean;
    v_build text := case when exists (select from holdfast.builds)
        then holdfast._build_of_start(p_run_id, p_new.name, coalesce(p_new.version, 1)) end;
begin
    if holdfast._refers(p_new.input) then
        perform holdfast._use_payloads(p_run_id, array[p_new.input]);
    end if;
    update holdfast.singleton_waits w
    set visible_at = v_due_at, timeout = p_new.timeout * interval '1 second'
    where w.run_id = p_run_id;
    v_waits := found;
    update holdfast.tasks t
    set handler = holdfast._turn_handler(p_new.name, coalesce(p_new.version, 1), v_build),
        queue = p_new.queue, priority = p_new.priority,
        visible_at = case when v_waits then t.visible_at else v_due_at end
    where t.run_id = p_run_id and t.key = '';
    update holdfast.runs r
    set version = coalesce(p_new.version, 1), build = v_build, queue = p_new.queue,
        priority = p_new.priority, input = coalesce(p_new.input, 'null'),
        tags = holdfast._tags(p_new.tags), headers = p_new.headers,
        retention = p_new.retention * interval '1 second',
        deadline_at = case when not v_waits then v_due_at + p_new.timeout * interval '1 second' end,
        due_at = case when not v_waits then v_due_at end
    where r.run_id = p_run_id;
    delete from holdfast.attributes a where a.run_id = p_run_id;
    perform holdfast._add_attributes(array[p_run_id], array[p_run_id], array[p_new.tags]);
    update holdfast.start_keys k set expires_at = v_due_at
    where k.rule = 'debounce' and k.name = p_new.name and k.key = p_debounce_key;
end $$;
