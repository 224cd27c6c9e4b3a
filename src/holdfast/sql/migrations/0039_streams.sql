-- Streams: values that a run appends under a name while it works, for readers.
--
-- streams         one row a stream: how much it has. Its row is the lock of those who append to it.
-- stream_writers  an attempt that has written to a stream: from which offset on, and how long the
--                 log of its run was then.
-- stream_chunks   what one attempt gathered: an array of values, encoded as one payload.
-- stream_readers  which streams clients wait for. Unlogged: a lost row costs a late answer.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (39, 'streams');

create table holdfast.streams (
    run_id uuid not null,
    name text not null,
    base bigint not null default 0,  -- offset of the last value of the run that continued as this
    items bigint not null default 0,  -- offset of the last value
    chunks bigint not null default 0,
    bytes bigint not null default 0,
    primary key (run_id, name),
    constraint streams_count_from_zero check (
        base >= 0 and items >= base and chunks >= 0 and bytes >= 0)
) with (fillfactor = 50);  -- each flush updates the row in its page

create table holdfast.stream_writers (
    run_id uuid not null,
    key text not null,  -- of the step or activity
    lease_no int not null,
    attempt int not null,
    name text not null,
    first_offset bigint not null,
    log_length int not null,  -- the end of what it writes for stands after this in the log
    primary key (run_id, key, lease_no, attempt, name)
);

create table holdfast.stream_chunks (
    run_id uuid not null,
    name text not null,
    last_offset bigint not null,  -- of its last value; the first value of a stream has 1
    count int not null,
    key text not null,  -- '' if the code of the workflow wrote it
    lease_no int not null,
    attempt int not null,
    closes boolean not null,  -- nothing is written after it; it takes an offset, and has no value
    bytes int not null,
    items json not null,
    primary key (run_id, name, last_offset),
    constraint stream_chunks_have_items check (count > 0 and last_offset >= count)
);

create unlogged table holdfast.stream_readers (
    run_id uuid not null,
    name text not null,
    until timestamptz not null,
    primary key (run_id, name)
);

commit;
