-- Alerts: workers declare them, one worker at a time looks, and each change is one event.

-- Declare the alerts of an app's code. p_alerts is a JSON array of rows of `alerts`. Workers call
-- it when they start, with p_starting, and again and again. The code that started last counts, and
-- if no worker has declared it for 90 seconds, any other, unless the database was away meanwhile.
--
-- Returns the names of those that were added and of those that were changed.
-- Refuses values that are not allowed (22004, 22023).
-- Locks: the alerts that change, by name. Called by workers.
create or replace function holdfast.declare_alerts(
    p_app text, p_alerts json, p_starting boolean default false,
    out added text[], out changed text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_new holdfast.alerts;
    v_old holdfast.alerts;
begin
    perform holdfast._check_name('an app', p_app);
    for v_new in
        select * from json_populate_recordset(null::holdfast.alerts, p_alerts) as n order by n.name
    loop
        v_new.app := p_app;
        v_new.heard_at := v_now;
        v_new.look_at := v_now;
        v_new.is_active := false;
        perform holdfast._check_given('the name of an alert', v_new.name is not null);
        perform holdfast._check_given('the kind, the subject, the threshold and how long it lasts',
            num_nulls(v_new.kind, v_new.subject, v_new.threshold, v_new.lasting_seconds) = 0);
        perform holdfast._check_topic(v_new.topic);
        if char_length(v_new.name) not between 1 and 100 then
            raise invalid_parameter_value using message = format(
                'the name of an alert has 1 to 100 characters, not %s', char_length(v_new.name));
        end if;
        insert into holdfast.alerts select v_new.* on conflict do nothing;
        if found then
            added := added || v_new.name;
            continue;
        end if;
        select * into v_old from holdfast.alerts a where a.app = p_app and a.name = v_new.name;
        if (v_old.kind, v_old.subject, v_old.threshold, v_old.within_seconds,
            v_old.lasting_seconds, v_old.topic)
            is not distinct from (v_new.kind, v_new.subject, v_new.threshold,
                v_new.within_seconds, v_new.lasting_seconds, v_new.topic)
        then
            update holdfast.alerts a set heard_at = v_now
            where a.app = p_app and a.name = v_new.name
                and not holdfast._is_heard(a.heard_at, v_now, 15);
        elsif p_starting or not holdfast._is_heard(v_old.heard_at, v_now, 90)
            and holdfast._can_tell_gone(p_app, v_now, false)
        then
            update holdfast.alerts a
            set kind = v_new.kind, subject = v_new.subject, threshold = v_new.threshold,
                within_seconds = v_new.within_seconds, topic = v_new.topic,
                lasting_seconds = v_new.lasting_seconds, heard_at = v_now, look_at = v_now,
                differs_since = null
            where a.app = p_app and a.name = v_new.name;
            changed := changed || v_new.name;
        end if;
    end loop;
end $$;

-- Look at the alerts that are due, each at most once in 10 seconds. One that changes is written and
-- published in this transaction: one event for each change. If its event is refused, it stays as it
-- is, with the error, and is tried again.
--
-- One that no worker has declared for 90 seconds, although one of its app was heard all the while,
-- is deleted; if it was active, it is over.
--
-- Returns a row for each alert that changed, was refused or deleted; `notices` are
-- (topic, payload). A worker that was not heard for p_silent_seconds does not count as live.
-- Locks: the alerts, skipping what others hold; then as publish, one after the other. Called by
-- workers.
create or replace function holdfast.look_at_alerts(
    p_silent_seconds float8 default 8, p_limit int default 1000
) returns table (
    app text, name text, is_active boolean, value float8, error text, is_deleted boolean,
    notices text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_alert holdfast.alerts;
    v_holds boolean;
    v_notices text[];
begin
    for v_alert in
        select * from holdfast.alerts a where holdfast._alert_is_due(a.look_at, v_now)
        order by a.look_at limit holdfast._limit(p_limit) for update skip locked
    loop
        if holdfast._is_left(v_alert, v_now) then
            delete from holdfast.alerts a where a.app = v_alert.app and a.name = v_alert.name;
            return query select v_alert.app, v_alert.name, false, null::float8, null::text, true,
                case when v_alert.is_active
                    then holdfast._publish_alert(v_alert, v_now, false, null) end;
            continue;
        end if;
        v_alert.value := holdfast._seen_of(v_alert, v_now, p_silent_seconds);
        v_holds := coalesce(case v_alert.kind when 'no_worker'
            then v_alert.value < v_alert.threshold
            else v_alert.value >= v_alert.threshold end, false);
        v_alert.error := null;
        v_notices := null;
        if v_holds = v_alert.is_active then
            v_alert.differs_since := null;
        else
            -- No worker was heard while the database was away, and so nobody looked either.
            v_alert.differs_since := case when v_alert.kind = 'no_worker'
                    and v_alert.looked_at <= v_now - interval '1 minute' then v_now
                else least(v_alert.differs_since, v_now) end;
        end if;
        if v_alert.differs_since <= v_now - v_alert.lasting_seconds * interval '1 second' then
            begin
                v_notices := holdfast._publish_alert(v_alert, v_now, v_holds, v_alert.value);
                v_alert.is_active := v_holds;
                v_alert.changed_at := v_now;
                v_alert.differs_since := null;
            exception
                when invalid_parameter_value or null_value_not_allowed or sqlstate 'HFQ01' then
                    v_alert.error := left(sqlerrm, 1000);
            end;
            return query select v_alert.app, v_alert.name, v_alert.is_active, v_alert.value,
                v_alert.error, false, v_notices;
        end if;
        update holdfast.alerts a
        set look_at = v_now + interval '10 seconds', looked_at = v_now, value = v_alert.value,
            is_active = v_alert.is_active, changed_at = v_alert.changed_at,
            differs_since = v_alert.differs_since, error = v_alert.error
        where a.app = v_alert.app and a.name = v_alert.name;
    end loop;
end $$;

-- Return true if the code of an alert's app does not have it any more: no worker says that it does,
-- although one of the app was heard without a gap for so long. After an absence of the database, no
-- worker was. Locks nothing. Called by look_at_alerts.
create or replace function holdfast._is_left(p_alert holdfast.alerts, p_now timestamptz)
returns boolean
language sql stable
as $$
    select not holdfast._is_heard(p_alert.heard_at, p_now, 90) and exists (
        select from holdfast.workers w
        where holdfast._is_heard_without_gap(w.worker_id, p_now, 90)
            and exists (
                select from unnest(w.handlers) as h (handler)
                where starts_with(h.handler, p_alert.app || '/')))
$$;

-- Return true if an alert is to be looked at. If its moment is far ahead, the clock has gone back.
-- Called by look_at_alerts and _duties.
create or replace function holdfast._alert_is_due(p_look_at timestamptz, p_now timestamptz)
returns boolean
language sql stable parallel safe
return p_look_at <= p_now or p_look_at > p_now + interval '1 minute';

-- Publish that an alert has begun or is over, see AlertEvent of holdfast/types/alerts.py. Returns
-- (topic, payload) notices. Locks: as publish. Called by look_at_alerts.
create or replace function holdfast._publish_alert(
    p_alert holdfast.alerts, p_now timestamptz, p_active boolean, p_value float8
) returns text[]
language plpgsql
as $$
begin
    return (holdfast.publish(p_alert.topic, json_build_object(
        'alert', p_alert.name, 'app', p_alert.app, 'active', p_active, 'kind', p_alert.kind,
        'subject', p_alert.subject, 'value', p_value, 'threshold', p_alert.threshold,
        'within_seconds', p_alert.within_seconds, 'at', holdfast._tick_text(p_now)
        ))).notices;
end $$;

-- List alerts by app and name. Locks nothing. Called by clients.
create or replace function holdfast.list_alerts()
returns table (
    app text, name text, kind text, subject text, threshold float8, within_seconds float8,
    lasting_seconds float8, topic text, is_active boolean, value float8, changed_at bigint,
    looked_at bigint, error text
)
language sql stable
as $$
    select a.app, a.name, a.kind, a.subject, a.threshold, a.within_seconds, a.lasting_seconds,
        a.topic, a.is_active, a.value, holdfast._micros(a.changed_at),
        holdfast._micros(a.looked_at), a.error
    from holdfast.alerts a
    order by a.app, a.name
$$;
