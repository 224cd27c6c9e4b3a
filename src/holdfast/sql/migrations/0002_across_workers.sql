-- What a run does beyond its own worker, and what people do to it while it lives.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (2, 'across_workers');

alter table holdfast.tasks
    add column parent_run_id uuid,  -- a turn's: the run that is told of this one's end
    add column deadline_at timestamptz,  -- an activity's: it is over then, whatever it does
    add column heartbeat json,  -- an activity's: what its attempts said last
    add column cancelled boolean not null default false;  -- an activity's: nobody waits for it

-- What becomes of a child that still runs when its parent ends.
alter table holdfast.runs
    add column parent_close text,
    add constraint runs_parent_close_is_known check (
        parent_close in ('terminate', 'cancel', 'abandon')),
    add constraint runs_child_has_a_parent check (
        (parent_run_id is null) = (parent_key is null)
        and (parent_run_id is null) = (parent_close is null));

create index tasks_by_deadline on holdfast.tasks (deadline_at) where deadline_at is not null;
create index tasks_approvals on holdfast.tasks (run_id, key) where kind = 'approval';

-- Queues and workflows of which nothing is claimed.
create table holdfast.pauses (
    scope text not null,
    name text not null,
    reason text,
    paused_at timestamptz not null,
    primary key (scope, name),
    constraint pauses_scope_is_known check (scope in ('queue', 'workflow'))
);

commit;
