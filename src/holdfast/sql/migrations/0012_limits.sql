-- Flow control: how many tasks may run at once or begin in a period, and in which order.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (12, 'limits');

-- One row is one rule for the tasks of a queue, a workflow or an activity. Claims lock the rows of
-- the limits under which they take tasks: one claim at a time counts what a limit allows.
create table holdfast.limits (
    limit_id int generated always as identity primary key,
    scope text not null,
    name text not null,
    kind text not null,
    key text not null default '',  -- the path of the key in the input; '' for all tasks together
    most int,  -- concurrency: tasks at once; rate: tasks in a period
    period interval,  -- rate; ageing: after which a task counts as one priority more urgent
    holds text,  -- concurrency: until when a task counts
    smooth boolean,  -- rate: evenly spaced
    declared json,  -- what the code of the app said last; null if it did not
    app text,  -- whose code declares it
    removed boolean not null default false,  -- limits nothing; tasks may still wait under it
    added_at timestamptz not null,
    changed_at timestamptz not null,
    unique (scope, name, kind, key),
    constraint limits_scope_is_known check (scope in ('queue', 'workflow', 'activity')),
    constraint limits_kind_is_known check (kind in ('concurrency', 'rate', 'fairness', 'ageing')),
    constraint limits_holds_is_known check (holds in ('turn', 'run')),
    constraint limits_most_is_for_counts check (
        (most is not null) = (kind in ('concurrency', 'rate'))),
    constraint limits_most_lets_some_run check (most >= 1),
    constraint limits_period_is_for_time check (
        (period is not null) = (kind in ('rate', 'ageing'))),
    constraint limits_period_is_positive check (period > '0'),
    constraint limits_holds_is_for_concurrency check ((holds is not null) = (kind = 'concurrency')),
    constraint limits_smooth_is_for_rate check ((smooth is not null) = (kind = 'rate')),
    constraint limits_fairness_has_a_key check (kind <> 'fairness' or key <> ''),
    constraint limits_ageing_has_none check (kind <> 'ageing' or key = '')
);

-- The tasks that count for a limit, by the value of its key. A row counts as long as its task does,
-- so nothing has to give it back: claims delete the rows that count no longer.
create table holdfast.limit_holders (
    limit_id int not null,
    slot text collate "C" not null,
    run_id uuid not null,
    key text not null,
    primary key (limit_id, slot, run_id, key)
);

-- What a rate has let begin within its period: moments, and how many tasks at each.
create table holdfast.limit_uses (
    limit_id int not null,
    slot text collate "C" not null,
    ats timestamptz[] not null,
    counts int[] not null,
    primary key (limit_id, slot)
);

-- Where the next claim begins to look, so that each group of tasks gets its turn.
create table holdfast.limit_turns (
    queue text not null,
    handler text not null,
    limit_keys text collate "C" not null,
    wraps int not null default 0,  -- since a claim took something last
    primary key (queue, handler)
);

-- A task that is due but must wait for a limit has visible_at 'infinity', and here since when it
-- waits. Tasks with the same limit_keys, {"limit_id": "value of its key"}, are a group.
alter table holdfast.tasks
    add column limited_at timestamptz,
    add column limit_keys text collate "C";

create index tasks_limited on holdfast.tasks (queue, handler, priority, limit_keys, limited_at)
    where limited_at is not null and not paused;

commit;
