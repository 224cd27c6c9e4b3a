-- When a run could begin, beside when it was created and when it was first claimed: so the time that
-- it waited in a queue is known. And the clock of a fork's code, which is that of its origin.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (34, 'times_in_queues');

alter table holdfast.runs
    add column due_at timestamptz,  -- of a delayed start; null: when it was created
    add column clock_at timestamptz;  -- of a fork: when its first origin was first claimed

alter table holdfast.tasks
    add column clock_at timestamptz;  -- of a fork's turn: as that of its run

commit;
