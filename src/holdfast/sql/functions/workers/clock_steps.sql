-- The clock was set back: what was due at once while it was ahead must not wait until it is there.

-- Remember how far ahead the clock was, if a worker was heard more than ten seconds from now.
-- Locks: rows of clock_steps. Called by heartbeat.
create or replace function holdfast._watch_clock(p_now timestamptz) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    v_ahead timestamptz := (
        select max(w.heard_at) from holdfast.workers w
        where w.heard_at > p_now + interval '10 seconds');
begin
    if v_ahead is null then
        return;
    end if;
    -- Else the insert would wait for a sweep that is deleting the row.
    if not exists (select from holdfast.clock_steps c where c.ahead >= v_ahead) then
        insert into holdfast.clock_steps (ahead) values (v_ahead) on conflict do nothing;
    end if;
end $$;

-- Let what was written while the clock was ahead, and was due within a minute then, be due now:
-- free tasks, messages, deliveries to URLs. What a consumer holds is given back after the queue's
-- visibility. What waits for longer waits for its moment: a user may have named it.
-- Locks: clock_steps, then the rows, all skipping locked ones. Called by sweep_buckets.
create or replace function holdfast._catch_up(p_now timestamptz) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_soon timestamptz := p_now + interval '10 seconds';
    v_until timestamptz;
begin
    if not exists (select from holdfast.clock_steps) then
        return;
    end if;
    with noticed as (
        delete from holdfast.clock_steps c
        where c.ahead in (select o.ahead from holdfast.clock_steps o for update skip locked)
        returning c.ahead
    )
    -- Workers are heard at intervals: something may have been written a little later.
    select max(n.ahead) + interval '2 minutes' into v_until from noticed n;
    if v_until is null then
        return;
    end if;
    -- If the last event of its log is ahead, a task was written then.
    update holdfast.tasks t set visible_at = p_now
    where t.ctid = any (array(
        select t.ctid from holdfast.tasks t
        where t.worker is null and t.visible_at > v_soon and t.visible_at <= v_until
            and t.visible_at <= (
                select case when e.at > p_now then e.at + interval '1 minute' end
                from holdfast.events e where e.run_id = t.run_id order by e.idx desc limit 1)
        for update skip locked));
    update holdfast.messages m set visible_at = p_now
    where m.ctid = any (array(
        select m.ctid from holdfast.messages m
        where m.sent_at > p_now and m.visible_at > v_soon
            and m.visible_at <= m.sent_at + interval '1 minute'
        for update skip locked));
    update holdfast.filtered_messages m set visible_at = p_now
    where m.ctid = any (array(
        select m.ctid from holdfast.filtered_messages m
        where m.sent_at > p_now and m.visible_at > v_soon
            and m.visible_at <= m.sent_at + interval '1 minute'
        for update skip locked));
    update holdfast.grouped_messages m set visible_at = p_now
    where m.ctid = any (array(
        select m.ctid from holdfast.grouped_messages m
        where m.sent_at > p_now and m.visible_at > v_soon
            and m.visible_at <= m.sent_at + interval '1 minute'
        for update skip locked));
    -- A token that comes too early does no harm: its group is looked at.
    update holdfast.group_tokens t set visible_at = p_now
    where t.ctid = any (array(
        select t.ctid from holdfast.group_tokens t
        where t.visible_at > v_soon and t.visible_at <= v_until
        for update skip locked));
    update holdfast.deliveries d set visible_at = p_now + f.visibility
    from (
        select d.ctid as tid, q.visibility_seconds * interval '1 second' as visibility
        from holdfast.deliveries d
        join holdfast.queues q on q.queue_id = d.queue_id
        where d.received_at > p_now
            and d.visible_at > v_soon + q.visibility_seconds * interval '1 second'
        for update of d skip locked
    ) as f
    where d.ctid = f.tid;
    -- After an attempt: longer than any lease or pause.
    update holdfast.http_deliveries d set visible_at = p_now
    where d.ctid = any (array(
        select d.ctid from holdfast.http_deliveries d
        where d.dead_at is null and d.visible_at > v_soon and d.visible_at <= v_until
            and (d.attempts = 0 or d.visible_at > p_now + interval '10 minutes')
        for update skip locked));
end $$;
