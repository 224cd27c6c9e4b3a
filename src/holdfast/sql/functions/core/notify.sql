-- Wake-ups. In a whole cluster, PostgreSQL commits only one notifying transaction at a time: if all
-- transactions notified, no two could share a flush. So most of them notify after their change, in
-- a separate transaction. To notify within the change saves the receiver a round trip and a commit:
-- one transaction of a schema may do so at a time, and the others do not wait for it.

-- Send payloads to channels, after the change they tell of. Called by workers and clients.
create or replace function holdfast.notify(p_channels text[], p_payloads text[])
returns void
language sql
as $$
    select pg_notify(u.channel, u.payload)
    from unnest(p_channels, p_payloads) as u (channel, payload)
$$;

-- Name the channel of a topic; a long one by its digest. Called by _tell,
-- _tell_schedulers and _tell_limited.
create or replace function holdfast._channel(p_schema text, p_topic text) returns text
language sql stable parallel safe
return case when octet_length(p_schema || ':' || p_topic) <= 63 then p_schema || ':' || p_topic
    else left(encode(sha256(convert_to(p_schema || ':' || p_topic, 'UTF8')), 'hex'), 63) end;

-- Return the topic of tasks of a queue that any worker may take at once: of many of them all
-- workers are told, because one is not enough. Called by _schedule_activities, _start_children,
-- _begin_maps, _start_subscribed and _start_ticks.
create or replace function holdfast._hint_topic(p_topic text, p_tasks bigint) returns text
language sql immutable parallel safe
return case when p_tasks < 50 then p_topic else 'work' end;

-- Return notices with the topic 'work' in place of 'starts' and 'activities'. Called by _as_work.
create or replace function holdfast._renamed_to_work(p_notices text[]) returns text[]
language sql immutable parallel safe
return (
    select array_agg(array[case when p_notices[n.place][1] in ('starts', 'activities') then 'work'
        else p_notices[n.place][1] end, p_notices[n.place][2]] order by n.place)
    from generate_subscripts(p_notices, 1) as n (place));

-- Return (topic, payload) notices for callers that send no hints: those of what any worker may take
-- at once, 'starts' and 'activities', become those of 'work'. The query for that is in a function
-- of its own, so that this one is inlined: most notices are returned as they are. Called by all
-- that return notices of starts or activities to workers or clients.
create or replace function holdfast._as_work(p_notices text[]) returns text[]
language sql immutable parallel safe
return case when p_notices && '{starts,activities}' then holdfast._renamed_to_work(p_notices)
    else p_notices end;

-- Return true if a queue has one or two workers, and notifications reach them. Called by _tell.
create or replace function holdfast._has_few_listeners(p_queue text) returns boolean
language sql stable parallel safe
return (
    select count(*) between 1 and 2 and bool_and(coalesce(w.listens, false))
    from (
        select w.listens from holdfast.workers w where p_queue = any (w.queues) limit 3
    ) as w);

-- Send (topic, payload) notices with the transaction that they tell of. Returns those that the
-- caller has to send: all of them if p_tell is null, if another transaction is sending now, or if
-- the server's queue of notifications fills up, which would make the commit fail.
--
-- p_tell is the schema's name. ':hints' behind it says that the caller sends hints: notices of
-- 'starts' and 'activities' are left to it, with ':starts' also those of 'work', but for queues of
-- one or two workers that listen: a hint follows the commit, so it is later. Else these are notices
-- of 'work'.
-- Locks: it waits for none; at the commit, the server's lock for notifications. Called by all
-- that a caller waits for one by one.
create or replace function holdfast._tell(p_tell text, p_notices text[]) returns text[]
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_schema text := split_part(p_tell, ':', 1);
    v_hints text[];
begin
    if p_notices is null then
        return null;
    elsif p_tell is distinct from v_schema then
        select array_agg(u.notice) filter (where u.is_hint),
            array_agg(u.notice) filter (where not u.is_hint)
        into v_hints, p_notices
        from (
            select array[p_notices[n.place][1], p_notices[n.place][2]] as notice,
                (p_notices[n.place][1] in ('starts', 'activities')
                    or p_notices[n.place][1] = 'work' and right(p_tell, 7) = ':starts')
                    and not holdfast._has_few_listeners(p_notices[n.place][2]) as is_hint
            from generate_subscripts(p_notices, 1) as n (place)
        ) as u;
        if p_notices is null then
            return v_hints;
        end if;
    end if;
    p_notices := holdfast._as_work(p_notices);
    if v_schema is null or pg_notification_queue_usage() > 0.5
        or not pg_try_advisory_xact_lock(hashtext('holdfast.tell'), hashtext(v_schema))
    then
        return v_hints || p_notices;
    end if;
    perform pg_notify(holdfast._channel(v_schema, p_notices[n.place][1]), p_notices[n.place][2])
    from generate_subscripts(p_notices, 1) as n (place);
    return v_hints;
end $$;
