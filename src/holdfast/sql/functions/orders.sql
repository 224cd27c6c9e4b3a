-- Orders: events of a run's own commit that ask for something elsewhere. They are carried out in
-- the transaction that writes them, so nothing is ordered twice, and nothing is lost.

-- Carry out the orders among the events of a commit; the last four arrays are parallel, in the
-- order of the logs. Only those of p_ordering count. What is new comes first, then what is given
-- up, then what others are told. A run of p_ended has no tasks any more, and gets none. `notices` are
-- (topic, payload); `undelivered` is that of commit.
-- Locks: expects the turn rows of p_ordering, and of the runs that their orders are for, locked;
-- ids of new runs; other task rows; events, run by run. Called by commit.
create or replace function holdfast._carry_out(
    p_now timestamptz, p_ordering uuid[], p_ended uuid[],
    p_run_ids uuid[], p_types text[], p_keys text[], p_details json[],
    out notices text[], out undelivered json
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_told text[];
    v_order record;
begin
    for v_order in
        select o.event_type, array_agg(o.run_id order by o.place) as run_ids,
            array_agg(o.key order by o.place) as keys,
            array_agg(o.details order by o.place) as details
        from unnest(p_run_ids, p_types, p_keys, p_details) with ordinality
            as o (run_id, event_type, key, details, place)
        where o.run_id = any (p_ordering)
            and not (o.run_id = any (p_ended) and o.event_type in ('ActivityScheduled',
                'ActivityCancelRequested', 'ApprovalRequested', 'ApprovalWithdrawn'))
        group by o.event_type
        order by array_position(array['ActivityScheduled', 'ApprovalRequested', 'ChildStarted',
            'WorkflowContinuedAsNew', 'ActivityCancelRequested', 'ApprovalWithdrawn',
            'SignalSent', 'ChildCancelRequested'], o.event_type)
    loop
        if v_order.event_type = 'SignalSent' then
            select s.notices, s.undelivered into v_told, undelivered
            from holdfast._send_signals(v_order.run_ids, v_order.details) as s;
            notices := notices || v_told;
            continue;
        end if;
        notices := notices || case v_order.event_type
            when 'ActivityScheduled' then holdfast._schedule_activities(
                p_now, v_order.run_ids, v_order.keys, v_order.details)
            when 'ApprovalRequested' then holdfast._request_approvals(
                p_now, v_order.run_ids, v_order.keys, v_order.details)
            when 'ChildStarted' then holdfast._start_children(
                p_now, v_order.run_ids, v_order.keys, v_order.details)
            when 'WorkflowContinuedAsNew' then holdfast._continue_runs(
                p_now, v_order.run_ids, v_order.details)
            when 'ActivityCancelRequested' then holdfast._cancel_activities(
                p_now, v_order.run_ids, v_order.keys)
            when 'ApprovalWithdrawn' then holdfast._withdraw_approvals(
                v_order.run_ids, v_order.keys)
            when 'ChildCancelRequested' then holdfast._cancel_children(
                p_now, v_order.run_ids, v_order.details)
            end;
    end loop;
end $$;

-- Send the signals of SignalSent, which p_run_ids have written. If the receiver continued as new, its
-- newest run gets the signal. `notices` are (topic, payload); `undelivered` is that of commit.
-- Locks: as signal_runs. Called by _carry_out.
create or replace function holdfast._send_signals(
    p_run_ids uuid[], p_details json[], out notices text[], out undelivered json
)
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_sent record;
    v_outcomes text[];
begin
    select array_agg(coalesce(n.newest, u.target) order by u.place) as run_ids,
        array_agg(u.details ->> 'signal_name' order by u.place) as names,
        array_agg(coalesce(u.details -> 'input', 'null') order by u.place) as payloads,
        array_agg(u.details ->> 'signal_id' order by u.place) as signal_ids,
        array_agg(u.run_id order by u.place) as senders
    into v_sent
    from (
        select u.*, (u.details ->> 'run_id')::uuid as target
        from unnest(p_run_ids, p_details) with ordinality as u (run_id, details, place)
    ) as u
    left join lateral holdfast.newest_runs(array[u.target]) as n on true;
    if v_sent.run_ids is not null then
        select s.outcomes, s.notices into v_outcomes, notices
        from holdfast.signal_runs(
            v_sent.run_ids, v_sent.names, v_sent.payloads, v_sent.signal_ids) as s;
        if v_outcomes && array['ended', 'missing'] then
            select json_agg(json_build_array(u.sender, u.run_id, u.name, u.outcome)
                order by u.place)
            into undelivered
            from unnest(v_sent.senders, v_sent.run_ids, v_sent.names, v_outcomes)
                with ordinality as u (sender, run_id, name, outcome, place)
            where u.outcome in ('ended', 'missing');
        end if;
    end if;
end $$;
