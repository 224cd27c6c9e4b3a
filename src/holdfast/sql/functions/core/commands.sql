-- Commands: events of a run's own commit that ask other processes for something. They are carried
-- out in the transaction that writes them, so each is carried out exactly once.

-- Carry out the commands among the events of a commit; the last four arrays are parallel, in the
-- order of the logs. Only events of the runs in p_commanding count. First new things are made, then
-- others are withdrawn, at last other runs are told. A run in p_ended has no tasks any more, and
-- gets none. `notices` are (topic, payload); `undelivered` is that of commit.
-- Locks: expects the turn rows of p_commanding, and of the runs that their commands are for,
-- locked; rows of runs; attributes; ids of new runs; other task rows; events, run by run; streams.
-- Called by commit.
create or replace function holdfast._carry_out(
    p_now timestamptz, p_commanding uuid[], p_ended uuid[],
    p_run_ids uuid[], p_types text[], p_keys text[], p_details json[],
    out notices text[], out undelivered json
)
language plpgsql
as $$
declare
    v_told text[];
    v_command record;
begin
    for v_command in
        select o.event_type, array_agg(o.run_id order by o.place) as run_ids,
            array_agg(o.key order by o.place) as keys,
            array_agg(o.details order by o.place) as details
        from unnest(p_run_ids, p_types, p_keys, p_details) with ordinality
            as o (run_id, event_type, key, details, place)
        where o.run_id = any (p_commanding)
            and not (o.run_id = any (p_ended) and o.event_type in ('ActivityScheduled',
                'ActivityCancelRequested', 'ApprovalRequested', 'ApprovalWithdrawn'))
        group by o.event_type
        order by array_position(array['AttributesSet', 'StreamWritten', 'EventSubscribed',
            'ActivityScheduled', 'ApprovalRequested', 'WebhookOpened', 'ChildStarted',
            'WorkflowContinuedAsNew', 'ActivityCancelRequested', 'ApprovalWithdrawn',
            'WebhookClosed', 'SignalSent', 'ChildCancelRequested'], o.event_type)
    loop
        if v_command.event_type = 'SignalSent' then
            select s.notices, s.undelivered into v_told, undelivered
            from holdfast._send_signals(v_command.run_ids, v_command.details) as s;
            notices := notices || v_told;
            continue;
        elsif v_command.event_type = 'AttributesSet' then
            -- The runs first, as set_attributes does: a statement that waited for one attribute
            -- would not see the others that were set meanwhile.
            perform holdfast._lock_runs(v_command.run_ids);
            perform holdfast._set_attributes(v_command.run_ids, v_command.details);
            continue;
        end if;
        notices := notices || case v_command.event_type
            when 'EventSubscribed' then holdfast._subscribe_runs(
                p_now, v_command.run_ids, v_command.keys, v_command.details)
            when 'ActivityScheduled' then holdfast._schedule_activities(
                p_now, v_command.run_ids, v_command.keys, v_command.details)
            when 'ApprovalRequested' then holdfast._request_approvals(
                p_now, v_command.run_ids, v_command.keys, v_command.details)
            when 'WebhookOpened' then holdfast._open_webhooks(
                p_now, v_command.run_ids, v_command.keys, v_command.details)
            when 'ChildStarted' then holdfast._start_children(
                p_now, v_command.run_ids, v_command.keys, v_command.details)
            when 'WorkflowContinuedAsNew' then holdfast._continue_runs(
                p_now, v_command.run_ids, v_command.details)
            when 'ActivityCancelRequested' then holdfast._cancel_activities(
                p_now, v_command.run_ids, v_command.keys)
            when 'ApprovalWithdrawn' then holdfast._withdraw_approvals(
                v_command.run_ids, v_command.keys)
            when 'WebhookClosed' then holdfast._close_webhooks(
                v_command.run_ids, v_command.keys)
            when 'ChildCancelRequested' then holdfast._cancel_children(
                p_now, v_command.run_ids, v_command.details)
            when 'StreamWritten' then holdfast._write_streams_of_code(
                p_now, v_command.run_ids, v_command.details)
            end;
    end loop;
end $$;
