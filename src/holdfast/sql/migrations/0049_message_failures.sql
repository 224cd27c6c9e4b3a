-- The errors of messages: one row for each receive that failed, while the message is there. The
-- newest are kept, and only messages with an error of their own have any.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (49, 'message_failures');

create table holdfast.message_failures (
    message_id bigint not null,
    number int not null,  -- from 1 on, of each message
    failed_at timestamptz not null,
    error text not null,
    primary key (message_id, number)
);

commit;
