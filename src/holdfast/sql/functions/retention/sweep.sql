-- Delete ended runs whose retention is over, in batches.

-- Delete a batch: at most p_limit runs, and about p_rows rows of theirs, those first whose time
-- came first. Runs that must be kept (see _kept_runs) are looked at again an hour later, or when
-- what keeps them is due itself. A run that is larger than p_rows is deleted in parts, by several
-- calls. `has_more` is true if there may be more to do: the next call is given p_after, which is
-- the `after` of this one, and so does not search among what was deleted just now.
--
-- Refuses limits below 1 (22023), nulls (22004), and everything if runs of this database are to be
-- archived first (22023): see lease_due_runs.
-- Locks: rows of runs, skipping what others hold, and what belongs to them. Called by clients and
-- by workers.
create or replace function holdfast.sweep_runs(
    p_limit int default 1000, p_rows int default 20000, p_after bigint default null,
    out deleted int, out kept int, out has_more boolean, out after bigint
)
language plpgsql
as $$
declare
    v_due record;
    v_kept uuid[];
begin
    perform holdfast._check_sweep(p_limit, p_rows);
    if (select s.archive is not null from holdfast.sweeper s) then
        raise invalid_parameter_value using message = format(
            'runs of this database are archived before they are deleted, in %s: sweep with that '
            'archive', (select s.archive from holdfast.sweeper s));
    end if;
    select * into v_due from holdfast._due_runs(p_limit, p_rows, holdfast._moment(p_after));
    v_kept := holdfast._keep_runs(v_due.run_ids);
    kept := cardinality(v_kept);
    has_more := v_due.has_more;
    after := holdfast._micros(nullif(v_due.after, '-infinity'));
    if v_due.is_large and kept = 0 then
        perform holdfast._delete_part(v_due.run_ids[1], p_rows);
        deleted := 0;
    else
        deleted := holdfast._delete_runs(array(
            select u.run_id from unnest(v_due.run_ids) as u (run_id)
            where u.run_id <> all (v_kept)));
    end if;
end $$;

-- Refuse a batch of a size that is not allowed. Called by sweep_runs, lease_due_runs, export_runs
-- and delete_archived.
create or replace function holdfast._check_sweep(p_limit int, p_rows int) returns void
language plpgsql immutable
as $$
begin
    perform holdfast._check_given('the number of runs', p_limit is not null);
    perform holdfast._check_given('the number of rows', p_rows is not null);
    if least(p_limit, p_rows) < 1 then
        raise invalid_parameter_value using message = format(
            'runs are deleted in batches of 1 run and 1 row or more, not of %s and %s',
            p_limit, p_rows);
    end if;
end $$;

-- Lock runs whose retention is over, those first whose time came first: at most p_limit, and so
-- many that they have about p_rows rows. If the first has more, it is returned alone, and
-- `is_large` is true. `after` is the moment of the last one: what comes next is due then or later.
-- Locks: rows of runs, skipping what others hold. Called by sweep_runs and lease_due_runs.
create or replace function holdfast._due_runs(
    p_limit int, p_rows int, p_after timestamptz,
    out run_ids uuid[], out is_large boolean, out has_more boolean, out after timestamptz
)
language plpgsql
set enable_bitmapscan = off
as $$
begin
    with due as materialized (
        select r.run_id, r.delete_after from holdfast.runs r
        where r.delete_after <= holdfast.now()
            and r.delete_after >= coalesce(p_after, '-infinity') and r.status <> 'running'
        order by r.delete_after limit p_limit for update skip locked
    ), sized as (
        select d.run_id, d.delete_after,
            sum(s.row_count) over (order by d.delete_after, d.run_id) as total,
            row_number() over (order by d.delete_after, d.run_id) as place
        from due d
        join holdfast._rows_of_runs(array(select d.run_id from due d)) as s
            on s.run_id = d.run_id
    )
    select coalesce(array_agg(s.run_id order by s.place), '{}'),
        coalesce(bool_or(s.total > p_rows), false), max(s.delete_after),
        count(*) = p_limit or count(*) < (select count(*) from due)
    into run_ids, is_large, after, has_more
    from sized s
    where s.total <= p_rows or s.place = 1;
    has_more := has_more or is_large;
    if is_large then
        after := p_after;
    end if;
end $$;

-- Keep those of some locked runs that must be kept (see _kept_runs) for an hour, or until what
-- keeps them is due. Returns them. A run of which a part is deleted is not kept: nobody may take
-- what is left for the whole, and a run that came back from the archive may link to it.
-- Locks: expects the rows of the runs locked; as _pass_over. Called by sweep_runs, lease_due_runs
-- and delete_archived.
create or replace function holdfast._keep_runs(p_run_ids uuid[]) returns uuid[]
language plpgsql
as $$
declare
    v_kept uuid[];
begin
    perform holdfast._pass_over(p_run_ids);
    with kept as materialized (
        select k.run_id, k.until
        from holdfast._kept_runs(p_run_ids) as k
        cross join lateral (
            select r.delete_after from holdfast.runs r where r.run_id = k.run_id limit 1
        ) as r
        where r.delete_after <> '-infinity'
    ), moved as (
        update holdfast.runs r
        set delete_after = greatest(k.until, holdfast.now() + interval '1 hour')
        from kept k
        where r.run_id = k.run_id
    )
    select coalesce(array_agg(k.run_id), '{}') into v_kept from kept k;
    return v_kept;
end $$;
