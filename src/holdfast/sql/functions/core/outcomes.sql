-- Outcomes for runs that a call changes: 'delivered', 'duplicate', 'ended', 'missing'.

-- Return the outcome for each run of a call: 'delivered' for the first mention of a run in
-- p_changed; 'duplicate' for another run in p_locked, which the call has locked, that has not
-- ended: it was in that state before. Locks nothing. Called by all that change many runs at once
-- from outside.
create or replace function holdfast._outcomes(
    p_run_ids uuid[], p_locked uuid[], p_changed uuid[]
)
returns text[]
language plpgsql stable
as $$
begin
    return array(
        select case
            when c.run_id is not null and u.mention = 1 then 'delivered'
            when u.run_id = any (p_locked) and t.ctid is not null then 'duplicate'
            else holdfast._absence(u.run_id) end
        from (
            select u.*, row_number() over (partition by u.run_id order by u.place) as mention
            from unnest(p_run_ids) with ordinality as u (run_id, place)
        ) as u
        left join unnest(p_changed) as c (run_id) on c.run_id = u.run_id
        left join lateral (
            select t.ctid from holdfast.tasks t where t.run_id = u.run_id and t.key = '' limit 1
        ) as t on true
        order by u.place);
end $$;

-- Return why nothing could be appended to a run's log: 'ended' or 'missing'. A run that is open was
-- missing: its start was committed after the caller had looked for it. Locks nothing. Called by all
-- that change runs from outside.
create or replace function holdfast._absence(p_run_id uuid) returns text
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return case when exists (
            select from holdfast.runs r where r.run_id = p_run_id and r.status <> 'running')
        then 'ended' else 'missing' end;
end $$;

-- Return true if a run exists. It reads the row's ctid: for the id alone PostgreSQL could choose an
-- index that has the id as its last column. Locks nothing. Called by due_payloads, fork_flow,
-- fork_run, _paused_steps, _start_child_flows and retry_flow.
create or replace function holdfast._has_run(p_run_id uuid) returns boolean
language plpgsql stable
as $$
declare
    v_row tid;
begin
    select r.ctid into v_row from holdfast.runs r where r.run_id = p_run_id;
    return found;
end $$;
