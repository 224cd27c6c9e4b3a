-- The end of a worker.

-- Delete a worker that stops and has released its tasks. With p_with_messages, what it has in
-- flight of message queues is given back, and the receive does not count: its loop ended before it
-- had the answer of a receive, so that no call has seen the messages.
-- Locks: the worker; with p_with_messages deliveries, skipping locked ones. Called by workers.
create or replace function holdfast.remove_worker(
    p_worker text, p_with_messages boolean default false
) returns void
language plpgsql
as $$
declare
    v_queue_ids int[];
    v_ids uuid[];
begin
    delete from holdfast.workers w where w.worker_id = p_worker;
    if p_with_messages then
        select array_agg(d.queue_id), array_agg(d.delivery_id) into v_queue_ids, v_ids
        from (
            select d.queue_id, d.delivery_id from holdfast.deliveries d
            where d.consumer = p_worker for update skip locked
        ) as d;
    end if;
    if v_ids is not null then
        perform holdfast.return_messages(v_queue_ids, v_ids,
            p_counted => array_fill(false, array[cardinality(v_ids)]));
    end if;
end $$;
