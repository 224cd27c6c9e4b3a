-- Inputs of steps that workers which speak SQL cannot be given, because jsonb cannot hold them.

-- Fail tasks that start_tasks would lease and whose input jsonb cannot hold. Returns false if there
-- are none. Locks: turn rows and tasks, as end_step_tasks. Called by start_tasks.
create or replace function holdfast._fail_illegible(
    p_flow_slug text, p_msg_ids bigint[], p_worker uuid
) returns boolean
language plpgsql
as $$
declare
    v_bad record;
begin
    select array_agg(t.run_id) as run_ids, array_agg(t.key) as keys, array_agg(e.error) as errors
    into v_bad
    from (  -- as _lock_messages, which would lock them before the turn rows
        select t.* from (select distinct m.id from unnest(p_msg_ids) as m (id)) as u
        cross join lateral (
            select * from holdfast.tasks t
            where t.message_id = u.id and t.worker is null and t.kind = 'step' and not t.paused
        ) as t
        union all
        select t.* from holdfast._ranges_of(regexp_replace(
            holdfast._newest_shape(p_flow_slug), '@[0-9]+$', '')) as l
        cross join lateral (
            select * from holdfast.tasks t
            where t.queue = l.queue and t.handler = l.handler and t.priority = l.priority
                and t.visible_at <= holdfast._clock() and t.message_id is null
                and t.worker is null and t.kind = 'step' and not t.paused
                and holdfast.message_id(t.run_id, t.key) = any (p_msg_ids)
        ) as t
    ) as t
    left join lateral holdfast._step_input(
        t.run_id, t.handler, t.key, t.payload is null) as i on true
    cross join lateral (
        select holdfast._jsonb_error(coalesce(t.payload::text, i.input)) as error limit 1
    ) as e
    where e.error is not null;
    if v_bad.run_ids is null then
        return false;
    end if;
    perform holdfast._lock_flows(array(select distinct unnest(v_bad.run_ids)));
    perform holdfast._lock_step_tasks(v_bad.run_ids, null);
    with begun as (
        update holdfast.tasks t
        set worker = p_worker::text, lease_no = t.lease_no + 1, attempts = t.attempts + 1,
            claimed_idx = 1, started_at = coalesce(t.started_at, holdfast._clock())
        from unnest(v_bad.run_ids, v_bad.keys, v_bad.errors) as u (run_id, key, error)
        where t.run_id = u.run_id and t.key = u.key and t.worker is null
        returning t.run_id, t.key, t.lease_no, u.error
    )
    select array_agg(b.run_id) as run_ids, array_agg(b.key) as keys,
        array_agg(b.lease_no) as leases, array_agg(json_build_object(
            'kind', 'holdfast.errors.PayloadError', 'message', format(
                'jsonb cannot hold what the step is given: %s', b.error))) as errors
    into v_bad
    from begun b;
    if v_bad.run_ids is not null then
        perform from holdfast.end_step_tasks(null, v_bad.run_ids, v_bad.keys, v_bad.leases, null,
            v_bad.errors, array_fill(false, array[cardinality(v_bad.keys)]),
            p_now => holdfast._clock());
    end if;
    return true;
end $$;

-- Return why jsonb cannot hold a JSON text; null if it can. Called by _fail_illegible.
create or replace function holdfast._jsonb_error(p_text text) returns text
language plpgsql immutable
as $$
begin
    perform p_text::jsonb;
    return null;
exception when data_exception or program_limit_exceeded then
    return sqlerrm;
end $$;
