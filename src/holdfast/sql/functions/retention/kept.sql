-- Which runs are kept although their retention is over.

-- Return those of some ended runs that must be kept, each with the reason and, if it is known, the
-- moment until which at least:
--
-- 'child'      a child of it has not ended
-- 'successor'  it continued as a run that is still there, which callers find through it, unless
--              _pass_over has had them find it otherwise
-- 'retry'      it was retried by a run, or its key was started again, by one that is still there,
--              which callers find through it
--
-- A successor or a retry that is itself among the runs, and not kept, keeps nothing: both go
-- together. Locks nothing: expects the rows of the runs locked, in an earlier statement, so that no
-- retry begins. Called by _keep_runs and preview_sweep.
create or replace function holdfast._kept_runs(p_run_ids uuid[])
returns table (run_id uuid, reason text, until timestamptz)
language plpgsql stable
as $$
begin
    return query
    with recursive asked as materialized (
        select r.run_id, r.next, r.retry, r.former_retry
        from unnest(p_run_ids) as u (run_id)
        cross join lateral (
            select r.run_id,
                case when r.status = 'continued' and r.output ->> 'passed_over' is null
                    then (r.output ->> 'run_id')::uuid end as next,
                case when r.status <> 'continued'
                    then holdfast.keyed_run_id('//retry', r.run_id::text) end as retry,
                case when r.status in ('failed', 'cancelled', 'timed_out', 'terminated')
                    then holdfast.keyed_run_id('run/retry', r.run_id::text) end as former_retry
            from holdfast.runs r where r.run_id = u.run_id limit 1
        ) as r
    ), links as materialized (
        select a.run_id, c.reason, n.run_id as next, n.delete_after
        from asked a
        cross join lateral (values
            (a.next, 'successor', false), (a.retry, 'retry', false), (a.former_retry, 'retry', true)
        ) as c (run_id, reason, is_former)
        cross join lateral (
            select r.run_id, r.delete_after, r.key from holdfast.runs r
            where r.run_id = c.run_id limit 1
        ) as n
        where c.run_id is not null and not (c.is_former and n.key is not null)
    ), kept as (
        select a.run_id, 'child' as reason, null::timestamptz as until
        from asked a
        cross join lateral (
            select from (
                select c.status from holdfast.runs c where c.parent_run_id = a.run_id offset 0
            ) as c
            where c.status = 'running' limit 1
        ) as c
        union
        select l.run_id, l.reason, l.delete_after
        from links l
        where not exists (select from asked a where a.run_id = l.next)
        union
        select l.run_id, l.reason, null
        from kept k
        join links l on l.next = k.run_id
    )
    select distinct on (k.run_id) k.run_id, k.reason, k.until
    from kept k
    order by k.run_id, k.until desc nulls last, k.reason;
end $$;

-- Let runs that continued point past those that they continued as, as far as the retention of these
-- is over: who looks for the newest run finds it without them, and they need not be kept for it. So
-- of a chain the first run stays, by whose key it is found. One with a stream is not passed
-- over: readers read a stream run by run.
-- Locks: expects the rows of the runs locked; rows of those passed over, skipping what others hold.
-- Called by _keep_runs.
create or replace function holdfast._pass_over(p_run_ids uuid[]) returns void
language plpgsql
as $$
declare
    v_continued constant text := 'continued';
    v_run record;
    v_next uuid;
    v_after uuid;
begin
    for v_run in
        select r.run_id, (r.output ->> 'run_id')::uuid as next  -- others may have any
        from unnest(p_run_ids) as u (run_id)
        cross join lateral (
            select r.run_id, r.status, r.output from holdfast.runs r
            where r.run_id = u.run_id limit 1
        ) as r
        where r.status = v_continued
    loop
        v_next := v_run.next;
        loop
            update holdfast.runs r
            set output = (r.output::jsonb || '{"passed_over": true}')::json
            where r.run_id = (
                select n.run_id from holdfast.runs n
                where n.run_id = v_next and n.status = v_continued
                    and n.delete_after <> '-infinity'
                    and n.completed_at + n.retention <= holdfast.now()
                    and not exists (
                        select from holdfast.streams s
                        where s.run_id = v_next and left(s.name, 1) <> '$')
                for update skip locked)
            returning (r.output ->> 'run_id')::uuid into v_after;
            exit when not found;
            v_next := v_after;
        end loop;
        if v_next <> v_run.next then
            update holdfast.runs r
            set output = (r.output::jsonb || jsonb_build_object('run_id', v_next))::json
            where r.run_id = v_run.run_id;
        end if;
    end loop;
end $$;
