-- What maintenance does for message queues.

-- Delete up to p_limit rows of each kind that mean nothing any more: deduplication ids and kept
-- messages whose time is over, and what queues that were deleted have left, one queue after another
-- until there were p_limit rows. Returns how many: there may be more if it is p_limit or more.
-- Locks: rows, skipping what others hold. Called by delete_queue and maintenance.
create or replace function holdfast.sweep_queues(p_limit int default 1000) returns int
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_limit int := holdfast._limit(p_limit);
    v_count int;
    v_total int;
    v_queue_id int;
begin
    delete from holdfast.deduplications d where d.ctid = any (array(
        select d.ctid from holdfast.deduplications d where d.expires_at <= v_now
        order by d.expires_at limit v_limit for update skip locked));
    get diagnostics v_total = row_count;
    delete from holdfast.kept_messages k where k.ctid = any (array(
        select k.ctid from holdfast.kept_messages k where k.delete_after <= v_now
        order by k.delete_after limit v_limit for update skip locked));
    get diagnostics v_count = row_count;
    v_total := v_total + v_count;
    for v_queue_id in select o.queue_id from holdfast._orphaned_queues() as o (queue_id) loop
        exit when v_total >= v_limit;  -- else many queues made a statement that is never over
        v_total := v_total + holdfast._empty_queue(v_queue_id, v_limit, true);
    end loop;
    return v_total;
end $$;

-- Return the ids of queues that do not exist and have left something. Each table is read by its
-- key, one row a queue. Called by sweep_queues.
create or replace function holdfast._orphaned_queues() returns setof int
language plpgsql stable
reset plan_cache_mode
as $$
declare
    v_table text;
begin
    foreach v_table in array '{messages,filtered_messages,grouped_messages,group_tokens,bodies,
        deliveries,deduplications,kept_messages,limited_messages,limited_groups}'::text[]
    loop
        return query execute format($query$
            with recursive known as (
                (select m.queue_id from holdfast.%1$I m order by m.queue_id limit 1)
                union all
                select (select m.queue_id from holdfast.%1$I m where m.queue_id > k.queue_id
                    order by m.queue_id limit 1)
                from known k where k.queue_id is not null
            )
            select k.queue_id from known k
            where k.queue_id is not null
                and not exists (select from holdfast.queues q where q.queue_id = k.queue_id)
            $query$, v_table);
    end loop;
end $$;

-- Delete up to p_limit rows of each table that belong to a queue: what waits, and with p_whole also
-- what is in flight, known or kept. Returns how many messages, with p_whole how many rows.
-- Locks: rows, skipping what others hold. Called by purge_messages and sweep_queues.
create or replace function holdfast._empty_queue(p_queue_id int, p_limit int, p_whole boolean)
returns int
language plpgsql
reset plan_cache_mode
as $$
declare
    v_table text;
    v_count int;
    v_total int := 0;
    v_failed bigint[];
    v_others text[] := '{group_tokens,bodies,deliveries,deduplications,kept_messages,
        limited_messages,limited_groups}';
begin
    foreach v_table in array '{messages,filtered_messages,grouped_messages}'::text[] loop
        execute format($query$
            with gone as (
                delete from holdfast.%1$I m where m.ctid = any (array(
                    select m.ctid from holdfast.%1$I m where m.queue_id = $1
                    limit $2 for update skip locked))
                returning m.message_id, m.payload is null as has_body, m.error
            ), bodies as (
                delete from holdfast.bodies b using gone g
                where g.has_body and b.queue_id = $1 and b.message_id = g.message_id
            )
            select count(*)::int, array_agg(g.message_id) filter (where g.error is not null)
            from gone g
            $query$, v_table)
        into v_count, v_failed using p_queue_id, p_limit;
        v_total := v_total + v_count;
        if v_failed is not null then
            perform holdfast._drop_failures(v_failed);
        end if;
    end loop;
    if p_whole then
        select array_agg(i.id) into v_failed
        from holdfast.deliveries d
        cross join lateral unnest(d.message_ids) as i (id)
        where d.queue_id = p_queue_id and d.errors is not null;
        perform holdfast._drop_failures(v_failed);
        foreach v_table in array v_others loop
            execute format($query$
                delete from holdfast.%1$I m where m.ctid = any (array(
                    select m.ctid from holdfast.%1$I m where m.queue_id = $1
                    limit $2 for update skip locked))
                $query$, v_table)
            using p_queue_id, p_limit;
            get diagnostics v_count = row_count;
            v_total := v_total + v_count;
        end loop;
    else
        delete from holdfast.limited_messages k where k.ctid = any (array(
            select k.ctid from holdfast.limited_messages k
            where k.queue_id = p_queue_id
                and not exists (
                    select from holdfast.messages m
                    where m.queue_id = p_queue_id and m.priority = k.priority + 8
                        and m.visible_at = k.visible_at and m.message_id = k.message_id)
                and not exists (
                    select from holdfast.filtered_messages m
                    where m.queue_id = p_queue_id and m.priority = k.priority + 8
                        and m.visible_at = k.visible_at and m.message_id = k.message_id)
            limit p_limit for update skip locked));
    end if;
    return v_total;
end $$;

-- Delete up to p_limit waiting messages of a queue; what is in flight stays. Returns how many: call
-- it again if it returns p_limit. Refuses an unknown queue (HFQ01).
-- Locks: the messages, skipping what others hold. Called by users and clients.
create or replace function holdfast.purge_messages(p_queue text, p_limit int default 10000)
returns int
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return holdfast._empty_queue(
        (holdfast._queue(p_queue)).queue_id, holdfast._limit(p_limit), false);
end $$;
