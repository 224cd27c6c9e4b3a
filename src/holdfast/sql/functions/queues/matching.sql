-- Receives with a condition.

-- Take messages that contain something; with a null, any. First among the 200 that are due longest,
-- where a condition that many meet is met soon; then, if that is not enough, through the index,
-- among up to 10,000 that meet it.
-- Locks: messages, skipping locked ones. Called by receive_messages.
create or replace function holdfast._take_matching(
    p_queue_id int, p_now timestamptz, p_limit int, p_contains json,
    out message_ids bigint[], out priorities smallint[], out newest timestamptz[],
    out attempts int[], out origin_ids int[], out sent_ats timestamptz[], out payloads json[],
    out headers json[], out errors text[], out has_bodies boolean
)
language plpgsql
set enable_bitmapscan = on  -- a GIN index can be read in no other way
as $$
declare
    v_contains jsonb := p_contains;
    v_tids tid[];
    v_taken holdfast.filtered_messages[];
begin
    select array_agg(m.tid) into v_tids
    from (
        select m.tid
        from generate_series(0, 4) as l (priority)
        cross join lateral (
            select m.ctid as tid, m.payload from holdfast.filtered_messages m
            where m.queue_id = p_queue_id and m.priority = l.priority and m.visible_at <= p_now
            order by m.visible_at, m.message_id limit greatest(200, p_limit)
        ) as m
        where v_contains is null or m.payload::jsonb @> v_contains
        limit greatest(200, p_limit)
    ) as m;
    v_taken := holdfast._take_chosen(p_queue_id, p_now, v_tids, p_limit, v_contains);
    if coalesce(cardinality(v_taken), 0) < p_limit and v_contains is not null then
        -- Conditions that no other index could serve.
        select array_agg(m.tid order by m.priority, m.visible_at, m.message_id) into v_tids
        from (
            select m.ctid as tid, m.priority, m.visible_at, m.message_id
            from holdfast.filtered_messages m
            where m.payload::jsonb @> v_contains
                and m.queue_id + 0 = p_queue_id and m.visible_at + interval '0' <= p_now
            limit 10000
        ) as m;
        v_taken := v_taken || holdfast._take_chosen(p_queue_id, p_now, v_tids,
            p_limit - coalesce(cardinality(v_taken), 0), v_contains);
    end if;
    select array_agg(t.message_id), array_agg(t.priority), array_agg(t.attempts + 1),
        case when count(t.origin_id) > 0 then array_agg(t.origin_id) end,
        array_agg(t.sent_at), array_agg(t.payload),
        case when count(t.headers) > 0 then array_agg(t.headers) end,
        case when count(t.error) > 0 then array_agg(t.error) end,
        false
    into message_ids, priorities, attempts, origin_ids, sent_ats, payloads, headers, errors,
        has_bodies
    from (select * from unnest(v_taken) as t order by t.priority, t.visible_at, t.message_id) as t;
end $$;

-- Take up to p_limit of these rows, in the order given. A place may have another row by now: the
-- condition is tested again.
-- Locks: messages, skipping locked ones. Called by _take_matching.
create or replace function holdfast._take_chosen(
    p_queue_id int, p_now timestamptz, p_tids tid[], p_limit int, p_contains jsonb
) returns holdfast.filtered_messages[]
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_taken holdfast.filtered_messages[];
begin
    with taken as (
        delete from holdfast.filtered_messages m where m.ctid = any (array(
            select m.tid
            from unnest(p_tids) with ordinality as u (tid, place)
            cross join lateral (
                select m.ctid as tid from holdfast.filtered_messages m
                where m.ctid = u.tid and m.queue_id = p_queue_id and m.visible_at <= p_now
                    and (p_contains is null or m.payload::jsonb @> p_contains)
                for update skip locked
            ) as m
            limit p_limit))
        returning m
    )
    select array_agg(t.m) into v_taken from taken t;
    return v_taken;
end $$;
