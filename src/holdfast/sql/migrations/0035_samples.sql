-- How much waited and how much was worked on, once a minute.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (35, 'samples');

create table holdfast.samples (
    minute timestamptz not null,  -- when it begins
    seconds int not null default 60,  -- how long it is: a minute, or an hour once it is old
    queue text not null,  -- empty in the row of all queues, which each minute with a sample has
    name text not null,  -- of a workflow, flow or activity, with its app; empty in that row
    looks int not null default 1,  -- how many samples there were
    due int not null,  -- the largest number of tasks that waited for a worker, as far as counted
    busy bigint not null,  -- tasks that workers had: the sum of all samples
    places bigint not null,  -- tasks that live workers may have: the sum; of all queues alone
    primary key (minute, seconds, queue, name),
    constraint samples_seconds_are_a_minute_or_an_hour check (seconds in (60, 3600))
);
create index samples_by_minute on holdfast.samples (minute) where seconds = 60;

commit;
