-- Counts of runs. What a count costs does not grow with the number of runs: each stops at a limit.

-- Return how many runs workflows have by status, each count at most p_limit; statuses without runs
-- are left out. With p_names null it is all runs, under an empty name. It reads entries of one
-- index, p_limit for each count. Locks nothing. Called by clients.
create or replace function holdfast.count_runs(p_names text[], p_limit int)
returns table (name text, status text, runs bigint)
language plpgsql stable
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_statuses constant text[] := array['running', 'completed', 'failed', 'cancelled',
        'timed_out', 'terminated', 'continued'];
begin
    if p_names is null then
        return query
        select '', s.status, c.runs
        from unnest(v_statuses) as s (status)
        cross join lateral (
            select count(*) as runs from (
                select from holdfast.runs r where r.status = s.status limit p_limit) as found
        ) as c
        where c.runs > 0;
        return;
    end if;
    return query
    select n.name, s.status, c.runs
    from unnest(p_names) as n (name)
    cross join unnest(v_statuses) as s (status)
    cross join lateral (
        select count(*) as runs from (
            select from holdfast.runs r
            where r.name = n.name and r.status = s.status limit p_limit) as found
    ) as c
    where c.runs > 0;
end $$;
