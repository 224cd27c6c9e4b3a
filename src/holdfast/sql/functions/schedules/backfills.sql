-- Backfills: ticks of the past that users ask for. Schedulers fire them, a portion at a time.

-- Ask for the ticks of a schedule from p_first to p_last, both included; schedulers fire them soon,
-- in their order. Ticks that have started a run do not start another. By default each waits for the
-- run before it, or does not if the schedule's policy is `allow`. Returns false if this backfill
-- was asked for before, and null if there is no such schedule. Refuses ranges that end after now or
-- before they begin, and other values that are not allowed (22004, 22023).
-- Locks: the schedule; the backfill. Called by clients and users.
create or replace function holdfast.backfill_schedule(
    p_name text, p_first bigint, p_last bigint, p_overlap text default null,
    p_backfill_id uuid default null
) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_now timestamptz := holdfast.now();
    v_name text := holdfast._schedule_name(p_name);
    v_overlap text;
begin
    perform holdfast._check_given('the first moment', p_first is not null);
    perform holdfast._check_given('the last moment', p_last is not null);
    perform holdfast._check_moment('the first moment', p_first);
    perform holdfast._check_moment('the last moment', p_last);
    perform holdfast._check_overlap(coalesce(p_overlap, 'skip'));
    if p_last < p_first or holdfast._moment(p_last) > v_now then
        raise invalid_parameter_value using message = format(
            'a backfill is of ticks that have passed: from %s to %s ends %s',
            holdfast._moment(p_first), holdfast._moment(p_last),
            case when p_last < p_first then 'before it begins' else 'in the future' end);
    end if;
    select case s.overlap when 'allow' then 'allow' else 'buffer_all' end into v_overlap
    from holdfast.schedules s where s.name = v_name for share;
    if not found then
        return null;
    end if;
    perform holdfast._check_overlap_of(v_name, p_overlap);
    insert into holdfast.schedule_backfills (backfill_id, schedule, overlap, position, last_at,
        look_at, created_at)
    values (coalesce(p_backfill_id, holdfast.new_run_id()), v_name,
        coalesce(p_overlap, v_overlap), holdfast._moment(p_first) - interval '1 microsecond',
        holdfast._moment(p_last), v_now, v_now)
    on conflict do nothing;
    if not found then
        return false;
    end if;
    perform holdfast._tell_schedulers(v_name);
    return true;
end $$;

-- Move a backfill from the position where it is expected to the next, firing these ticks. It ends
-- where its range does, or with an error. `moved` is false if it is elsewhere, or if another
-- transaction has it. Notices are (topic, payload).
-- Locks: the schedule; the backfill; then as _fire_round. Called by schedulers.
create or replace function holdfast.fire_backfill(
    p_backfill_id uuid, p_position bigint, p_new_position bigint, p_tick_ats bigint[],
    p_error text default null, out moved boolean, out notices text[]
)
language plpgsql
set lock_timeout = '500ms'
as $$
declare
    v_now timestamptz := holdfast.now();
    v_at bigint;
    v_backfill record;
begin
    perform from holdfast.schedules s
    where s.name = (
        select f.schedule from holdfast.schedule_backfills f where f.backfill_id = p_backfill_id)
    for update;
    select f.schedule, f.overlap into v_backfill
    from holdfast.schedule_backfills f
    where f.backfill_id = p_backfill_id and f.ended_at is null
        and f.position = holdfast._moment(p_position)
    for update;
    moved := found;
    if not moved then
        return;
    end if;
    foreach v_at in array p_tick_ats loop
        notices := notices || holdfast._fire_round(v_now, array[(v_backfill.schedule,
            holdfast._moment(v_at), 'backfill', v_backfill.overlap, null, null, null, null, null,
            null, null, null, null)::holdfast._tick]);
    end loop;
    update holdfast.schedule_backfills f
    set position = holdfast._moment(p_new_position), look_at = v_now,
        ended_at = case when p_error is not null
            or holdfast._moment(p_new_position) >= f.last_at then v_now end
    where f.backfill_id = p_backfill_id;
    notices := holdfast._as_work(notices);
end $$;

-- End all backfills of a schedule: ticks that they have not fired yet do not fire, and those that
-- wait for the end of a run are skipped. Runs that they have started continue. Returns how many
-- backfills these were, and how many ticks waited; nothing if there is no such schedule. Refuses a
-- null (22004).
-- Locks: the schedule; its backfills; its buckets. Called by clients and users.
create or replace function holdfast.cancel_backfills(p_name text)
returns table (backfills int, waiting_ticks int)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_name text := holdfast._schedule_name(p_name);
begin
    perform from holdfast.schedules s where s.name = v_name for update;
    if not found then
        return;
    end if;
    -- No portion is under way: schedulers lock the schedule first, too.
    update holdfast.schedule_backfills f set ended_at = v_now
    where f.schedule = v_name and f.ended_at is null;
    get diagnostics backfills = row_count;
    update holdfast.schedule_buckets b
    set outcome = 'skipped', cause = 'cancelled', handled_at = v_now
    where b.schedule = v_name and b.outcome = 'buffered' and b.origin = 'backfill';
    get diagnostics waiting_ticks = row_count;
    update holdfast.schedules s set buffered = s.buffered - waiting_ticks
    where s.name = v_name and waiting_ticks > 0;
    return next;
end $$;
