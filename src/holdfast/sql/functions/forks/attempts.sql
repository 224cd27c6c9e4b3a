-- The next attempts of runs that have failed, if the policy of their workflow retries them.

-- Write the logs of the runs that are the next attempts of others, as fork_run writes that of a
-- retry, and let them have the payloads, the webhooks, and the children that were let go. p_details
-- are those of WorkflowContinuedAsNew, parallel to p_run_ids; runs that only continue are left
-- alone. A worker has read all that is copied: a commit that ends a run so is refused if the log
-- has more.
-- Locks: rows of children; webhooks. Called by _continue_runs.
create or replace function holdfast._copy_attempts(p_run_ids uuid[], p_details json[])
returns void
language plpgsql
as $$
declare
    v_run record;
begin
    for v_run in
        select u.run_id, (u.details ->> 'run_id')::uuid as new_run_id, e.idx + 1 as length,
            json_build_object('calls', coalesce(u.details -> 'again' -> 'calls', '[]'),
                'seen', coalesce((u.details -> 'again' ->> 'seen')::int, 0),
                'after', holdfast._with_answered(u.run_id,
                    holdfast._texts(u.details -> 'again' -> 'calls'),
                    holdfast._texts(u.details -> 'again' -> 'after')),
                'attempt', u.details -> 'attempt', 'error', u.details -> 'error') as again
        from unnest(p_run_ids, p_details) as u (run_id, details)
        cross join lateral (
            select e.idx from holdfast.events e
            where e.run_id = u.run_id order by e.idx desc limit 1
        ) as e
        where u.details -> 'attempt' is not null
        order by u.run_id
    loop
        perform holdfast._take_over_webhooks(v_run.new_run_id, holdfast._copy_log(
            v_run.run_id, v_run.new_run_id, v_run.length, t.again, null))
        from holdfast._take_over_children(
            v_run.run_id, v_run.new_run_id, v_run.length, v_run.again) as t;
        perform holdfast._share_payloads(v_run.run_id, v_run.new_run_id);
    end loop;
end $$;

-- Return the details of WorkflowForked with the attempt that failed and its error, if p_again names
-- them. Called by _forked_details.
create or replace function holdfast._with_attempt(p_again json, p_details json) returns json
language sql stable
return case when p_again -> 'attempt' is null then p_details
    else (left(p_details::text, -1) || ',"attempt":' || (p_again -> 'attempt')
        || ',"error":' || (p_again -> 'error') || '}')::json end;
