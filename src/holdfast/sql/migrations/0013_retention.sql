-- Who deletes ended runs whose retention is over, and what came of it.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (13, 'retention');

-- One row. Any number of processes may sweep; a lease keeps them from doing so at the same time.
create table holdfast.sweeper (
    only_row boolean primary key default true,
    holder text,  -- who sweeps now
    held_until timestamptz,
    begun_at timestamptz,  -- the last pass that began, and the last that found no more to do
    ended_at timestamptz,
    deleted bigint not null default 0,  -- runs, by all passes
    failed_at timestamptz,  -- the last pass, if it failed, and why
    error text,
    archive text,  -- where runs are written before they are deleted; null: nowhere
    constraint sweeper_is_one_row check (only_row),
    constraint sweeper_lease_has_a_holder check ((holder is null) = (held_until is null)),
    constraint sweeper_failure_has_a_reason check ((failed_at is null) = (error is null))
);
insert into holdfast.sweeper default values;

commit;
