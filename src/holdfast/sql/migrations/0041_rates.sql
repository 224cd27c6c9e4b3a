-- Rates that count units: what each task uses is a number of its input, or of its call.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (41, 'rates');

alter table holdfast.limits
    add column units text,  -- units: the path of the number in the input; 'call' for that of a call
    drop constraint limits_kind_is_known,
    drop constraint limits_most_is_for_counts,
    drop constraint limits_period_is_for_time,
    add constraint limits_kind_is_known check (
        kind in ('concurrency', 'rate', 'units', 'fairness', 'ageing')),
    add constraint limits_most_is_for_counts check (
        (most is not null) = (kind in ('concurrency', 'rate', 'units'))),
    add constraint limits_period_is_for_time check (
        (period is not null) = (kind in ('rate', 'units', 'ageing'))),
    add constraint limits_units_are_for_units check ((units is not null) = (kind = 'units'));

-- What attempts have used more or less than was counted when they began: inserted without a lock,
-- counted with limit_uses, and deleted when the period is over.
create table holdfast.limit_corrections (
    limit_id int not null,
    slot text collate "C" not null,
    at timestamptz not null,  -- of more: when it became known; of less: of the task's first claim
    units int not null
);
create index limit_corrections_by_slot on holdfast.limit_corrections (limit_id, slot, at);

commit;
