-- Alerts: conditions that workers look at again and again, and tell of by events.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (44, 'alerts');

create table holdfast.alerts (
    app text not null,
    name text not null,
    kind text not null,
    subject text not null,  -- a workflow with its app, or a queue; empty: all workflows of the app
    threshold float8 not null,
    within_seconds float8,  -- of those that count what ended in a time
    lasting_seconds float8 not null,  -- a change counts when it has lasted so long
    topic text not null,  -- where its events are published
    heard_at timestamptz not null,  -- when a worker declared just this
    look_at timestamptz not null,  -- when it is looked at next
    looked_at timestamptz,
    value float8,  -- what was seen then
    is_active boolean not null default false,
    changed_at timestamptz,  -- when it last began or was over
    differs_since timestamptz,  -- since when the condition says otherwise
    error text,  -- why the event of a change could not be published
    primary key (app, name),
    constraint alerts_have_a_known_kind
        check (kind in ('failed', 'stuck', 'backlog', 'slow', 'no_worker')),
    constraint alerts_are_about_something
        check (subject <> '' or kind in ('failed', 'stuck', 'slow')),
    constraint alerts_count_within_a_time check (case when kind in ('failed', 'slow')
        then within_seconds is not null and within_seconds between 60 and 86400
        else within_seconds is null end),
    constraint alerts_can_begin check (threshold > 0 and lasting_seconds >= 0)
);
create index alerts_due on holdfast.alerts (look_at);

commit;
