-- Statistics by minute: how many runs of a workflow began and ended, and how long they took.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (24, 'stats');

create table holdfast.stats (
    minute timestamptz not null,  -- when it begins
    seconds int not null default 60,  -- how long it is: a minute, or an hour once it is old
    name text not null,  -- of the workflow, with its app
    writer text not null,  -- a worker; a backend that ended runs; empty: all of them, merged
    counts bigint[] not null,  -- in the order of holdfast.types.stats
    primary key (minute, seconds, name, writer),
    constraint stats_seconds_are_a_minute_or_an_hour check (seconds in (60, 3600)),
    constraint stats_have_counts check (cardinality(counts) = 25)
) with (fillfactor = 70);
create index stats_by_writer on holdfast.stats (minute) where writer <> '';
create index stats_by_minute on holdfast.stats (minute) where seconds = 60;

commit;
