-- What runs wait for that have not begun because of a rule.

-- Return the rule that a run waits for before it begins; no row if it does not. Of a singleton:
-- `active_run_id`, and the run's place in line from 1; of a debounce: `latest`, the moment at which
-- it begins however often the workflow is started; null if there is none. Locks nothing. Called by
-- clients.
create or replace function holdfast.start_wait(p_run_id uuid)
returns table (rule text, key text, active_run_id uuid, place int, latest bigint)
language plpgsql stable
as $$
begin
    return query
    select substr(a.topic, 2), case a.topic
            when ':singleton' then w.key
            when ':debounce' then holdfast._key_of(r.input, s.debounce_key)
            else holdfast._key_of(r.input, s.throttle_key) end,
        w.active_run_id, w.place::int,
        case a.topic when ':debounce' then holdfast._micros(
            k.since + s.debounce_max_wait_seconds * interval '1 second') end
    from holdfast.tasks t
    cross join lateral (
        select u.topic from unnest(t.awaiting) as u (topic)
        where u.topic in (':singleton', ':debounce', ':throttle') limit 1
    ) as a
    cross join lateral (
        select r.name, r.input from holdfast.runs r where r.run_id = t.run_id limit 1
    ) as r
    left join holdfast.start_rules s on s.name = r.name
    left join lateral (
        select w.key, k.run_id as active_run_id, (
            select count(*) from holdfast.singleton_waits o
            where o.name = w.name and o.key = w.key and o.place <= w.place) as place
        from holdfast.singleton_waits w
        left join holdfast.start_keys k
            on k.rule = 'singleton' and k.name = w.name and k.key = w.key
        where w.run_id = t.run_id limit 1
    ) as w on true
    left join lateral (
        select k.since from holdfast.start_keys k
        where k.rule = 'debounce' and k.name = r.name
            and k.key = holdfast._key_of(r.input, s.debounce_key) and k.run_id = t.run_id limit 1
    ) as k on true
    where t.run_id = p_run_id and t.key = '' and t.lease_no = 0;
end $$;

-- Return the keys of a workflow or a flow that rules hold now, at most p_limit of each rule. Of a
-- singleton: the active run, and how many runs wait for its end. Of a debounce: the run that is to
-- begin at `until`. Of a throttle: `until`, before which no further run begins. Refuses a negative
-- limit (22023). Locks nothing. Called by clients.
create or replace function holdfast.list_start_keys(p_name text, p_limit int default 100)
returns table (rule text, key text, run_id uuid, waiting int, until bigint)
language plpgsql stable
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    perform holdfast._limit(p_limit);
    return query
    select u.rule, h.key, h.run_id, h.waiting, holdfast._micros(h.until)
    from unnest(array['singleton', 'debounce', 'throttle']) with ordinality as u (rule, place)
    left join lateral (
        select s.* from holdfast.start_rules s
        where s.name = p_name limit 1
    ) as s on true
    cross join lateral (
        select k.key, case when u.rule <> 'throttle' then k.run_id end as run_id, (
                select count(*)::int from holdfast.singleton_waits w
                where u.rule = 'singleton' and w.name = k.name and w.key = k.key) as waiting,
            case u.rule when 'debounce' then k.expires_at when 'throttle' then t.until end as until
        from holdfast.start_keys k
        left join lateral (
            select t.at as until
            from holdfast._next_slot(s.throttle_limit,
                s.throttle_period_seconds * interval '1 second', s.throttle_excess, v_now,
                k.name, k.key, k.count) as t
            where u.rule = 'throttle' and s.throttle_limit is not null limit 1
        ) as t on true
        where k.rule = u.rule and k.name = p_name
            and case u.rule when 'singleton' then (
                    select r.status from holdfast.runs r where r.run_id = k.run_id) = 'running'
                when 'debounce' then k.expires_at > v_now and exists (
                    select from holdfast.tasks q
                    where q.run_id = k.run_id and q.key = '' and q.lease_no = 0)
                else t.until > v_now end
        order by k.key limit p_limit
    ) as h
    order by u.place, h.key;
end $$;
