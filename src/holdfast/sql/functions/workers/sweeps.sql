-- Sweeps: workers that work for a limited time and then end, for hosts without a worker.

-- Sign on a worker that will have ended after so many seconds, at most a day. If it is silent after
-- that, it was killed, and the next worker or sweep that reaps need not have observed its silence:
-- where there are only sweeps, none lives long enough to judge silence.
-- Refuses a time that is not allowed (22023).
-- Locks: the worker's row. Called by sweeps, when they sign on.
create or replace function holdfast.begin_sweep(
    p_worker text, p_hostname text, p_pid int, p_queues text[], p_handlers text[],
    p_concurrency int, p_version text, p_seconds float8,
    p_consumes text[] default null
) returns void
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    if p_seconds is null or p_seconds <= 0 or p_seconds > 86400 then
        raise invalid_parameter_value using message = format(
            'a sweep lasts between 0 and 86400 seconds, not %s',
            coalesce(p_seconds::text, 'null'));
    end if;
    insert into holdfast.workers (worker_id, hostname, pid, queues, handlers, concurrency,
        holdfast_version, started_at, heard_at, heard_since, ends_at, consumes)
    values (p_worker, p_hostname, p_pid, p_queues, p_handlers, p_concurrency, p_version,
        v_now, v_now, v_now, v_now + p_seconds * interval '1 second', p_consumes);
end $$;

-- Return when a free task of these queues and handlers comes due next, null for never. A moment
-- that has passed means that work remains. If another sweep is under way, the moment at which it
-- will have ended counts too: if it was killed, its tasks come due by then. Locks nothing. Called
-- by sweeps, when they end.
create or replace function holdfast.next_due(
    p_worker text, p_queues text[], p_handlers text[], out now bigint, out next_due_at bigint
)
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    now := holdfast._micros(holdfast.now());
    if exists (select from holdfast.pauses) then
        select * into p_queues, p_handlers from holdfast._unpaused(p_queues, p_handlers);
    end if;
    next_due_at := holdfast._micros(least(
        holdfast._next_due('{}', p_queues, p_handlers, '-infinity', '0', 'infinity'),
        (select min(w.ends_at) from holdfast.workers w where w.worker_id <> p_worker)));
end $$;
