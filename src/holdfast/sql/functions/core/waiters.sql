-- Waiters: topics that are told of the end of a run.

-- Register topics with the runs that have not ended; a null topic registers nothing.
-- Locks: the runs FOR SHARE, by run_id, so that no end slips in between. Called by all that start
-- runs.
create or replace function holdfast._register_waiters(p_run_ids uuid[], p_topics text[])
returns void
language plpgsql
as $$
begin
    insert into holdfast.waiters (run_id, topic)
    select u.run_id, u.topic
    from (
        select * from unnest(p_run_ids, p_topics) as u (run_id, topic)
        where u.topic is not null order by u.run_id
    ) as u
    cross join lateral (
        select r.status from holdfast.runs r where r.run_id = u.run_id for share
    ) as r
    where r.status = 'running'
    on conflict do nothing;
end $$;
