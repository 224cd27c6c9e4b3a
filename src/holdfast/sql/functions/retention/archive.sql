-- Write ended runs to an archive before they are deleted, and read them back.
--
-- Three calls, each a transaction: lease_due_runs chooses runs, export_runs returns all that they
-- are, and delete_archived deletes them when that is written elsewhere. A crash in between leaves
-- the runs here; they are written a second time when the lease is over.

-- Choose runs whose retention is over, and lease them: no other sweeper is given them for
-- p_lease_seconds. Runs that must be kept are left out; see _kept_runs. `row_count` is about how
-- many rows a run has. `is_written` is true for a run of which a part is deleted already: it is in
-- the archive, and must not be written again. All rows have `has_more`; there is one without a run
-- if no run was chosen.
--
-- Refuses limits below 1 (22023), a lease that is not a length of time (22023), and nulls (22004).
-- Locks: rows of runs, skipping what others hold. Called by clients and by workers.
create or replace function holdfast.lease_due_runs(
    p_limit int default 1000, p_rows int default 20000, p_lease_seconds float8 default 600
) returns table (
    run_id uuid, completed_at bigint, row_count bigint, is_written boolean, has_more boolean
)
language plpgsql
as $$
declare
    v_due record;
    v_kept uuid[];
    v_leased uuid[];
begin
    perform holdfast._check_sweep(p_limit, p_rows);
    perform holdfast._check_given('the length of a lease', p_lease_seconds is not null);
    perform holdfast._check_seconds('a lease', p_lease_seconds);
    select * into v_due from holdfast._due_runs(p_limit, p_rows, null);
    v_kept := holdfast._keep_runs(v_due.run_ids);
    v_leased := array(
        select u.run_id from unnest(v_due.run_ids) as u (run_id) where u.run_id <> all (v_kept));
    return query
    with leased as (
        update holdfast.runs r
        set delete_after = case when r.delete_after = '-infinity' then r.delete_after
            else holdfast.now() + p_lease_seconds * interval '1 second' end
        where r.run_id = any (v_leased)
        returning r.run_id, r.completed_at, r.delete_after
    )
    select l.run_id, holdfast._micros(l.completed_at), s.row_count, l.delete_after = '-infinity',
        v_due.has_more
    from leased l
    join holdfast._rows_of_runs(v_leased) as s on s.run_id = l.run_id
    order by l.run_id;
    if not found then
        return query select null::uuid, null::bigint, null::bigint, null::boolean, v_due.has_more;
    end if;
end $$;

-- Return the next part of all that runs are, as lines of JSON. The parts of a run are: the run, the
-- entries of its log, the states of its steps, the results of elements of its maps, the chunks of
-- its streams. p_afters say where each run's part begins: null for the beginning, else the `after`
-- of the line before. A call reads at most p_rows rows, and stops when these take about p_bytes; a
-- run that it does not come to has a null for its line. `after` is null after the last part.
--
-- Values stand in the lines as they were stored. `has_output` tells a result null from none. The
-- first line has the names of `streams`, and of a flow's run the `shape` that it had; with it come
-- the `labels` that delete_archived compares: tags and attributes change after the end. A run that
-- is not there as a whole has no row: it was deleted, or a part of it, or started again since. What
-- was read of it before is not all.
--
-- Refuses nulls (22004) and numbers below 1 (22023). Locks nothing. Called by clients and by
-- workers.
create or replace function holdfast.export_runs(
    p_run_ids uuid[], p_afters text[] default null, p_rows int default 5000,
    p_bytes bigint default 16000000
) returns table (run_id uuid, line text, after text, labels text)
language plpgsql stable
set enable_bitmapscan = off
as $$
begin
    perform holdfast._check_given('the ids of runs', p_run_ids is not null);
    perform holdfast._check_given('the number of bytes', p_bytes is not null);
    perform holdfast._check_sweep(1, p_rows);
    perform holdfast._check_sweep(1, least(p_bytes, 2147483647)::int);
    return query
    with asked as materialized (
        select u.run_id, u.place, r.kind, r.weight, coalesce(a.part, -1) as part,
            coalesce(a.slug, '') as slug, coalesce(a.nth, -1) as nth
        from unnest(p_run_ids, p_afters) with ordinality as u (run_id, after, place)
        cross join lateral (
            select r.kind, holdfast._weight(r.input) + holdfast._weight(r.output)
                + holdfast._weight(r.error) + case r.kind when 'flow' then 400 * (
                    select count(*) from holdfast.steps s
                    where s.handler = r.name || '@' || r.version) else 0 end as weight
            from holdfast.runs r
            where r.run_id = u.run_id and r.status <> 'running'
                and r.delete_after is distinct from '-infinity'
            limit 1
        ) as r
        cross join lateral (
            select split_part(u.after, ' ', 1)::int as part,
                split_part(u.after, ' ', 2)::bigint as nth, split_part(u.after, ' ', 3) as slug
        ) as a
    ), found as materialized (
        select a.place, 0 as part, '' as slug, 0 as nth, a.weight
        from asked a where a.part < 0
        union all
        select a.place, 1, '', e.idx, e.weight
        from asked a
        cross join lateral (
            select e.idx, holdfast._weight(e.details) as weight from holdfast.events e
            where e.run_id = a.run_id and a.part <= 1
                and e.idx > case a.part when 1 then a.nth else -1 end
            order by e.idx limit p_rows
        ) as e
        union all
        select a.place, 2, s.step_slug, 0, s.weight
        from asked a
        cross join lateral (
            select s.step_slug, holdfast._weight(s.output) + holdfast._weight(s.error) as weight
            from holdfast.step_states s
            where a.kind = 'flow' and s.run_id = a.run_id
                and (a.part < 2 or a.part = 2 and s.step_slug > a.slug)
            order by s.step_slug limit p_rows
        ) as s
        union all
        select a.place, 3, x.step_slug, x.task_index, x.weight
        from asked a
        cross join lateral (
            select x.step_slug, x.task_index, holdfast._weight(x.output) as weight
            from holdfast.step_tasks x
            where a.kind = 'flow' and x.run_id = a.run_id and a.part <= 3
                and (x.step_slug, x.task_index) > (
                    case a.part when 3 then a.slug else '' end,
                    case a.part when 3 then a.nth else -1 end)
            order by x.step_slug, x.task_index limit p_rows
        ) as x
        union all
        select a.place, 4, k.name, k.last_offset, k.weight
        from asked a
        cross join lateral (
            select k.name, k.last_offset, 200 + k.bytes as weight from holdfast.stream_chunks k
            where k.run_id = a.run_id and (k.name, k.last_offset) > (
                case a.part when 4 then a.slug else '' end,
                case a.part when 4 then a.nth else -1 end)
            order by k.name, k.last_offset limit p_rows
        ) as k
    ), counted as (
        select f.*, sum(f.weight) over w - f.weight as before, row_number() over w as rank
        from found f
        window w as (order by f.place, f.part, f.slug, f.nth rows unbounded preceding)
    ), chosen as materialized (
        select c.place, count(*) as count, (array_agg(c.part order by c.rank desc))[1] as part,
            (array_agg(c.slug order by c.rank desc))[1] as slug,
            (array_agg(c.nth order by c.rank desc))[1] as nth
        from counted c
        where c.rank = 1 or (c.before < p_bytes and c.rank <= p_rows)
        group by c.place
    ), all_of as (
        select f.place, count(*) as count from found f group by f.place
    )
    select a.run_id,
        case when c.place is not null or n.count is null then
            '{"run":' || case when a.part < 0 then r.run || ',"has_output":' || r.has_output
                    || ',"retention_seconds":' || coalesce(r.retention_seconds::text, 'null')
                    || coalesce(',"shape":' || r.shape, '')
                    || coalesce(',"attributes":' || r.attributes, '')
                    || coalesce(',"streams":' || r.streams, '')
                else to_json(a.run_id)::text end
                || ',"events":' || coalesce(e.events, '[]')
                || coalesce(',"states":' || s.states, '')
                || coalesce(',"elements":' || x.elements, '')
                || coalesce(',"chunks":' || k.chunks, '') || '}' end,
        case when n.count is null or (c.count = n.count and n.count < p_rows) then null
            when c.place is null then p_afters[a.place]
            else c.part || ' ' || c.nth || ' ' || c.slug end,
        r.labels
    from asked a
    left join all_of n on n.place = a.place
    left join chosen c on c.place = a.place
    left join lateral (
        select row_to_json(r)::text as run, r.output is not null as has_output,
            extract(epoch from r.retention)::float8 as retention_seconds,
            case a.kind when 'flow' then holdfast._shape_had(
                r.name || '@' || r.version, r.created_at)::text end as shape,
            holdfast._labels(r.run_id, r.tags) as labels,
            holdfast._attributes(r.run_id)::text as attributes, (
                select json_agg(json_build_object('name', s.name, 'base', s.base))::text
                from holdfast.streams s where s.run_id = a.run_id) as streams
        from holdfast.runs r where r.run_id = a.run_id and a.part < 0 and c.place is not null
    ) as r on true
    left join lateral (
        select json_agg(json_build_object('idx', e.idx, 'event_type', e.event_type, 'key', e.key,
            'details', e.details, 'at', e.at) order by e.idx)::text as events
        from holdfast.events e
        where e.run_id = a.run_id and a.part <= 1 and c.part >= 1
            and e.idx > case a.part when 1 then a.nth else -1 end
            and e.idx <= case c.part when 1 then c.nth else 2147483647 end
    ) as e on true
    left join lateral (
        select json_agg(row_to_json(s) order by s.step_slug)::text as states
        from (
            select s.*, s.output is not null as has_output from holdfast.step_states s
            where a.kind = 'flow' and s.run_id = a.run_id
                and (a.part < 2 or a.part = 2 and s.step_slug > a.slug)
                and (c.part > 2 or c.part = 2 and s.step_slug <= c.slug)
        ) as s
    ) as s on true
    left join lateral (
        select json_agg(x.element)::text as elements
        from (
            select row_to_json(x) as element from holdfast.step_tasks x
            where a.kind = 'flow' and x.run_id = a.run_id and a.part <= 3
                and (x.step_slug, x.task_index) > (
                    case a.part when 3 then a.slug else '' end,
                    case a.part when 3 then a.nth else -1 end)
                and (c.part > 3
                    or c.part = 3 and (x.step_slug, x.task_index) <= (c.slug, c.nth))
            order by x.step_slug, x.task_index
        ) as x
    ) as x on true
    left join lateral (
        select json_agg(json_build_object('name', k.name, 'last_offset', k.last_offset,
            'count', k.count, 'key', k.key, 'lease_no', k.lease_no, 'attempt', k.attempt,
            'closes', k.closes, 'items', k.items) order by k.name, k.last_offset)::text as chunks
        from holdfast.stream_chunks k
        where k.run_id = a.run_id and c.part = 4
            and (k.name, k.last_offset) > (
                case a.part when 4 then a.slug else '' end,
                case a.part when 4 then a.nth else -1 end)
            and (k.name, k.last_offset) <= (c.slug, c.nth)
    ) as k on true
    order by a.run_id;
end $$;

-- Return about how many bytes a value takes in a line, without reading it: what is compressed may
-- be many times as large. Called by export_runs.
create or replace function holdfast._weight(p_value json) returns bigint
language sql stable parallel safe
return 100 + coalesce(pg_column_size(p_value)
    * case when pg_column_compression(p_value) is null then 1 else 20 end, 0)::bigint;

-- Return a text that tells the tags and attributes of a run from others. Called by export_runs and
-- delete_archived.
create or replace function holdfast._labels(p_run_id uuid, p_tags text[]) returns text
language plpgsql stable
as $$
begin
    return md5(to_json(p_tags)::text || coalesce((
        select json_agg(json_build_array(a.name, a.value) order by a.name collate "C")::text
        from holdfast.attributes a where a.run_id = p_run_id), ''));
end $$;

-- Delete runs that are in the archive, named by their ids and the moments of their ends: a run that
-- was deleted and started again meanwhile is another one. Runs that others hold, runs that must be
-- kept by now, and those whose p_labels are others than the archive has, stay: they are written
-- again later. A null for labels, or none, is not compared. A run with more than p_rows rows is
-- deleted in parts. Returns how many were deleted, and those of which a part is left: the call is
-- to be repeated with them.
--
-- Refuses nulls (22004) and numbers below 1 (22023). Locks: rows of runs, skipping what others
-- hold, and what belongs to them. Called by clients and by workers.
create or replace function holdfast.delete_archived(
    p_run_ids uuid[], p_completed_ats bigint[], p_rows int default 20000,
    p_labels text[] default null, out deleted int, out remaining uuid[]
)
language plpgsql
as $$
declare
    v_locked uuid[];
    v_kept uuid[];
begin
    perform holdfast._check_given('the ids of runs', p_run_ids is not null);
    perform holdfast._check_given('the moments of their ends', p_completed_ats is not null);
    perform holdfast._check_sweep(1, p_rows);
    v_locked := array(
        select l.run_id
        from unnest(p_run_ids, p_completed_ats) as u (run_id, completed_at)
        cross join lateral (
            select r.run_id from holdfast.runs r
            where r.run_id = u.run_id and r.status <> 'running'
                and r.completed_at = holdfast._moment(u.completed_at)
            for update skip locked
        ) as l);
    if p_labels is not null then
        v_locked := array(
            select l.run_id
            from unnest(v_locked) as l (run_id)
            join unnest(p_run_ids, p_labels) as u (run_id, labels) on u.run_id = l.run_id
            cross join lateral (
                select r.tags, r.delete_after from holdfast.runs r
                where r.run_id = l.run_id limit 1
            ) as r
            where u.labels is null or r.delete_after = '-infinity'
                or u.labels = holdfast._labels(l.run_id, r.tags));
    end if;
    v_kept := holdfast._keep_runs(v_locked);
    remaining := array(
        select s.run_id from holdfast._rows_of_runs(v_locked) as s
        where s.row_count > p_rows and s.run_id <> all (v_kept));
    perform holdfast._delete_part(u.run_id, p_rows) from unnest(remaining) as u (run_id);
    deleted := holdfast._delete_runs(array(
        select u.run_id from unnest(v_locked) as u (run_id)
        where u.run_id <> all (v_kept) and u.run_id <> all (remaining)));
end $$;

-- Make an archived run an ended run again, with its log, states, results and streams: p_lines are
-- the lines of export_runs, in order. It is kept for p_retention_seconds from now on. Returns
-- 'restored', or 'exists' if there is a run with this id. The run of a flow has the shape that it
-- had.
--
-- Refuses nulls (22004), and lines that are not those of an ended run (22023).
-- Locks: the id, and the replaced shape, that it inserts. Called by clients.
create or replace function holdfast.restore_run(p_lines json[], p_retention_seconds float8)
returns text
language plpgsql
as $$
declare
    v_run holdfast.runs;
begin
    perform holdfast._check_given('the lines of a run', cardinality(p_lines) > 0 or null);
    perform holdfast._check_given('a retention', p_retention_seconds is not null);
    perform holdfast._check_seconds('a retention', p_retention_seconds);
    if coalesce(json_typeof(p_lines[1] -> 'run'), '') <> 'object' then
        raise invalid_parameter_value using message = 'the first line of a run has no run';
    end if;
    select * into v_run from json_populate_record(null::holdfast.runs, p_lines[1] -> 'run');
    if v_run.run_id is null or coalesce(v_run.status, 'running') = 'running' then
        raise invalid_parameter_value using message = 'the first line has no run that has ended';
    end if;
    v_run.input := coalesce(v_run.input, 'null');  -- a null of JSON is read as one of SQL
    if (p_lines[1] ->> 'has_output')::boolean then
        v_run.output := coalesce(v_run.output, 'null');
    end if;
    v_run.retention := (p_lines[1] ->> 'retention_seconds')::float8 * interval '1 second';
    v_run.delete_after := holdfast.now() + p_retention_seconds * interval '1 second';
    insert into holdfast.runs select v_run.* on conflict do nothing;
    if not found then
        return 'exists';
    end if;
    perform holdfast._set_attributes(array[v_run.run_id], p_lines[:1]);
    -- A shape that was replaced is kept only while there are runs of it.
    insert into holdfast.replaced_shapes (handler, replaced_at, shape)
    select f.handler, v_run.created_at + interval '1 microsecond', l.shape
    from holdfast.flows f
    cross join lateral (select nullif((p_lines[1] -> 'shape')::jsonb, 'null') as shape) as l
    where f.handler = v_run.name || '@' || v_run.version
        and l.shape <> holdfast._shape_had(f.handler, v_run.created_at)
    on conflict do nothing;
    insert into holdfast.events (run_id, idx, event_type, key, details, at)
    select v_run.run_id, e.idx, e.event_type, e.key, e.details, e.at
    from unnest(p_lines) as l (line)
    cross join lateral json_to_recordset(l.line -> 'events')
        as e (idx int, event_type text, key text, details json, at timestamptz);
    insert into holdfast.step_states
    select (json_populate_record(null::holdfast.step_states, s.state)).*
    from unnest(p_lines) as l (line)
    cross join lateral json_array_elements(l.line -> 'states') as s (state);
    update holdfast.step_states s set output = 'null'  -- a result that is null
    from unnest(p_lines) as l (line)
    cross join lateral json_array_elements(l.line -> 'states') as t (state)
    where s.run_id = v_run.run_id and s.step_slug = t.state ->> 'step_slug'
        and s.output is null and (t.state ->> 'has_output')::boolean;
    insert into holdfast.step_tasks (
        run_id, step_slug, task_index, output, error, attempts, worker, started_at, completed_at)
    select v_run.run_id, x.step_slug, x.task_index, coalesce(x.output, 'null'), x.error,
        x.attempts, x.worker, x.started_at, x.completed_at
    from unnest(p_lines) as l (line)
    cross join lateral json_populate_recordset(
        null::holdfast.step_tasks, l.line -> 'elements') as x;
    perform holdfast._restore_streams(v_run.run_id, p_lines);
    return 'restored';
end $$;

-- Say that runs are not archived any more before they are deleted. Returns the archive that was
-- noted, null if there was none. Locks: the row of the sweeper. Called by clients.
create or replace function holdfast.forget_archive() returns text
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_archive text;
begin
    select s.archive into v_archive from holdfast.sweeper s for update;
    update holdfast.sweeper set archive = null where v_archive is not null;
    return v_archive;
end $$;
