-- The schedules that the code of apps has. Workers say which these are.

-- Make the schedules of an app's code those of the database, unless newer code runs. A digest
-- stands for all schedules of a code together. Of the digests that workers have given in the last
-- 90 seconds, the newest counts: the one that became current last. It counts for longer if its
-- workers may still run, as after an absence of the database; see _can_tell_gone. `status` is
-- 'current' (the database has these schedules), 'written' (it has them now), 'superseded' (newer
-- code runs, nothing was changed). The other results name schedules: those that were added,
-- changed, paused because the code no longer has them, and resumed because it has them again.
--
-- p_schedules is a JSON array of rows of `schedules`, each with the digest of its definition. A
-- schedule whose digest is known is left as it is: users may have changed it. With p_restore, which
-- workers give when they start, those that were deleted are created again.
--
-- Refuses values that are not allowed, and the name of a schedule that did not come from code
-- (22004, 22023).
-- Locks: of the current set, its row; for another set, an advisory lock for the app, then the rows
-- of its sets; the schedules, by name. Called by workers, when they start and from time to time.
create or replace function holdfast.ensure_schedules(
    p_app text, p_digest text, p_schedules json, p_restore boolean default false,
    out status text, out added text[], out changed text[], out paused text[], out resumed text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_now timestamptz := holdfast.now();
    v_is_current boolean;
begin
    perform holdfast._check_name('an app', p_app);
    perform holdfast._check_given('a digest', p_digest is not null);
    if json_array_length(p_schedules) = 0 and not exists (
        select from holdfast.schedule_sets c where c.app = p_app)
    then
        status := 'current';  -- an app that has never had schedules
        return;
    end if;
    select c.is_current into v_is_current
    from holdfast.schedule_sets c where c.app = p_app and c.digest = p_digest;
    if v_is_current then
        update holdfast.schedule_sets c set heard_at = v_now
        where c.app = p_app and c.digest = p_digest
            and not holdfast._is_heard(c.heard_at, v_now, 5);
        status := 'current';
        if p_restore and exists (
            select from json_populate_recordset(null::holdfast.schedules, p_schedules) as n
            where not exists (select from holdfast.schedules s where s.name = n.name))
        then
            status := 'written';
            select w.added, w.changed, w.paused, w.resumed into added, changed, paused, resumed
            from holdfast._write_code(v_now, p_app, p_schedules) as w;
            perform holdfast._tell_schedulers(p_app);
        end if;
        return;
    end if;
    -- One worker of the app at a time decides which code is the newest.
    perform pg_advisory_xact_lock(hashtext('holdfast.schedule_sets'), hashtext(p_app));
    update holdfast.schedule_sets c set heard_at = v_now
    where c.app = p_app
        and (c.heard_at > v_now  -- the clock has gone back: they are heard from now on
            or c.digest = p_digest and not holdfast._is_heard(c.heard_at, v_now, 5));
    if v_is_current is false and exists (
        select from holdfast.schedule_sets c
        where c.app = p_app and c.is_current and (c.heard_at > v_now - interval '90 seconds'
            or not holdfast._can_tell_gone(p_app, v_now, p_restore)))
    then
        status := 'superseded';
        return;
    end if;
    if exists (
        select from holdfast.schedule_sets c
        where c.app = p_app and c.digest = p_digest and c.is_current)
    then
        status := 'current';  -- another worker with the same code was faster
        return;
    end if;
    update holdfast.schedule_sets c set is_current = false where c.app = p_app and c.is_current;
    insert into holdfast.schedule_sets as c (app, digest, adopted_at, heard_at, is_current)
    values (p_app, p_digest, v_now, v_now, true)
    on conflict (app, digest) do update
    set adopted_at = excluded.adopted_at, heard_at = excluded.heard_at, is_current = true;
    delete from holdfast.schedule_sets c
    where c.app = p_app and not c.is_current and c.heard_at < v_now - interval '30 days';
    status := 'written';
    select w.added, w.changed, w.paused, w.resumed into added, changed, paused, resumed
    from holdfast._write_code(v_now, p_app, p_schedules) as w;
    perform holdfast._tell_schedulers(p_app);
end $$;

-- Write the schedules of an app's code: see ensure_schedules, which calls it.
-- Locks: the schedules, by name.
create or replace function holdfast._write_code(
    p_now timestamptz, p_app text, p_schedules json,
    out added text[], out changed text[], out paused text[], out resumed text[]
)
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_new holdfast.schedules;
    v_old record;
begin
    for v_new in
        select * from json_populate_recordset(null::holdfast.schedules, p_schedules) as n
        order by n.name
    loop
        v_new.input := coalesce(v_new.input, 'null');  -- a null of JSON is read as one of SQL
        perform holdfast._check_schedule(v_new);
        v_new := holdfast._begun(v_new, p_now);
        v_new.from_code := true;
        insert into holdfast.schedules select v_new.* on conflict do nothing;
        if found then
            added := added || v_new.name;
            continue;
        end if;
        select s.from_code, s.code_digest, s.paused_by into v_old
        from holdfast.schedules s where s.name = v_new.name for update;
        if not v_old.from_code then
            raise invalid_parameter_value using message = format(
                'schedule %s exists already, and was not created by code: delete it, or give the '
                'schedule of the code another name', v_new.name);
        end if;
        if v_old.code_digest is distinct from v_new.code_digest then
            perform holdfast._redefine(v_new);
            changed := changed || v_new.name;
        end if;
        if v_old.paused_by = 'code' then
            perform holdfast.resume_schedule(v_new.name);
            resumed := resumed || v_new.name;
        end if;
    end loop;
    with gone as (
        update holdfast.schedules s
        set paused_at = p_now, paused_by = 'code', next_tick_at = null, look_at = 'infinity',
            note = 'the code of its app no longer has it'
        where s.name >= p_app || '/' and s.name < p_app || '0' and s.from_code
            and s.paused_at is null and not exists (
                select from json_populate_recordset(null::holdfast.schedules, p_schedules) as n
                where n.name = s.name)
        returning s.name
    )
    select array_agg(g.name order by g.name) into paused from gone g;
end $$;
