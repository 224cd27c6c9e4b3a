-- Start runs where messages are acknowledged.

-- Acknowledge places of a delivery and start runs; see start_runs for the arrays of these, and
-- start_flows for those of runs of flows, which may be null. Does nothing, and says so, if one of
-- the messages was not in flight any more. freed are queues where a group has more now, and
-- notices those of the starts of flows. Refuses what start_runs and start_flows refuse, also a
-- start that the rules of its workflow refuse.
-- Locks: the delivery, then as start_runs, then as start_flows. Called by workers.
create or replace function holdfast.ack_and_start(
    p_queue_id int, p_delivery_id uuid, p_places int[],
    p_run_ids uuid[], p_names text[], p_inputs json[], p_versions int[], p_keys text[],
    p_queues text[], p_priorities int[], p_start_ats bigint[], p_delays float8[],
    p_timeouts float8[], p_retentions float8[], p_tags json[], p_headers json[],
    p_waiters text[], p_rules json[],
    p_flow_ids uuid[] default null, p_flows text[] default null, p_flow_inputs json[] default null,
    p_flow_keys text[] default null, p_flow_queues text[] default null,
    p_flow_priorities int[] default null, p_flow_timeouts float8[] default null,
    p_flow_retentions float8[] default null, p_flow_tags json[] default null,
    p_flow_headers json[] default null, p_flow_waiters text[] default null,
    p_flow_start_ats bigint[] default null, p_flow_delays float8[] default null,
    out acked boolean, out freed text[], out created boolean[], out notices text[]
)
language plpgsql
as $$
declare
    v_count int := cardinality(p_places);
begin
    perform holdfast._lock_deliveries(array[p_queue_id], array[p_delivery_id]);
    acked := exists (
        select from holdfast.deliveries d
        where d.queue_id = p_queue_id and d.delivery_id = p_delivery_id
            and p_places <@ array(select generate_series(1, cardinality(d.message_ids)))
            and not p_places && coalesce(d.done, '{}'));
    if not acked then
        return;
    end if;
    select a.freed into freed
    from holdfast.ack_messages(array_fill(p_queue_id, array[v_count]),
        array_fill(p_delivery_id, array[v_count]), p_places) as a;
    created := array(
        select s.created
        from holdfast.start_runs(p_run_ids, p_names, p_inputs, p_versions, p_keys, p_queues,
            p_priorities, p_start_ats, p_delays, p_timeouts, p_retentions, p_tags, p_headers,
            p_waiters, p_rules => p_rules) as s);
    if p_flow_ids is not null then
        select f.notices into notices
        from holdfast.start_flows(p_flow_ids, p_flows, p_flow_inputs, p_flow_keys, p_flow_queues,
            p_flow_priorities, p_flow_timeouts, p_flow_retentions, p_flow_tags, p_flow_headers,
            p_flow_waiters, p_flow_start_ats, p_flow_delays) as f
        where f.notices is not null;
    end if;
end $$;
