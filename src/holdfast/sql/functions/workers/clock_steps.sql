-- The clock was set back: what was due at once while it was ahead must not wait until it is there.

-- Remember how far ahead the clock was, if a worker was heard more than ten seconds from now.
-- Locks: rows of clock_steps. Called by heartbeat.
create or replace function holdfast._watch_clock(p_now timestamptz) returns void
language plpgsql
reset enable_seqscan
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
-- free tasks, messages, deliveries to URLs. The visibility of what a consumer holds is counted from
-- now. What waits for longer waits for its moment: a user may have named it.
-- Locks: clock_steps, then the rows, all skipping locked ones. Called by sweep_buckets.
create or replace function holdfast._catch_up(p_now timestamptz) returns void
language plpgsql
as $$
declare
    v_soon timestamptz := p_now + interval '10 seconds';
    v_until timestamptz;
    v_table text;
begin
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
    -- Due at or soon after an event that is ahead: the event made it due. A pause that began since
    -- the clock was set back ends before such an event.
    update holdfast.tasks t set visible_at = p_now
    where t.ctid = any (array(
        select t.ctid from holdfast.tasks t
        where t.worker is null and t.visible_at > v_soon and t.visible_at <= v_until
            and exists (
                select from holdfast.events e
                where e.run_id = t.run_id and e.at > p_now
                    and t.visible_at between e.at and e.at + interval '1 minute')
        for update skip locked));
    foreach v_table in array '{messages,filtered_messages,grouped_messages}'::text[] loop
        execute format($query$
            update holdfast.%1$I m set visible_at = $1%2$s
            where m.ctid = any (array(
                select m.ctid from holdfast.%1$I m
                where m.sent_at > $1 and m.visible_at > $2
                    and m.visible_at between m.sent_at and m.sent_at + interval '1 minute'
                for update skip locked))
            $query$, v_table, case when v_table <> 'grouped_messages'
                then ', priority = m.priority % 8' end)  -- limits look at it again
        using p_now, v_soon;
    end loop;
    -- What comes too early does no harm: the group is looked at.
    update holdfast.limited_groups g set allowed_at = '-infinity' where g.ctid = any (array(
        select g.ctid from holdfast.limited_groups g
        where g.allowed_at > v_soon for update skip locked));
    update holdfast.group_tokens t set visible_at = p_now
    where t.ctid = any (array(
        select t.ctid from holdfast.group_tokens t
        where t.visible_at > v_soon and t.visible_at <= v_until
        for update skip locked));
    update holdfast.deliveries d
    set visible_at = d.visible_at - (d.received_at - p_now), received_at = p_now
    where d.ctid = any (array(
        select d.ctid from holdfast.deliveries d
        where d.received_at > v_soon and d.visible_at >= d.received_at
        for update skip locked));
    -- After an attempt: longer than any lease or pause.
    update holdfast.http_deliveries d set visible_at = p_now
    where d.ctid = any (array(
        select d.ctid from holdfast.http_deliveries d
        where d.dead_at is null and d.visible_at > v_soon and d.visible_at <= v_until
            and (d.attempts = 0 or d.visible_at > p_now + interval '10 minutes')
        for update skip locked));
end $$;
