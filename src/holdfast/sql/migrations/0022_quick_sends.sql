-- Send messages without CHECKs.
--
-- PostgreSQL reads the text of each CHECK again for each statement that inserts: of a send these
-- two were a tenth. Only functions write to these tables, and send_messages refuses a priority that
-- receives would not look for; what is given back has the values that it was sent with.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (22, 'quick_sends');

alter table holdfast.messages
    drop constraint messages_priority_in_range,
    drop constraint messages_attempts_are_counted;
alter table holdfast.grouped_messages drop constraint grouped_messages_attempts_are_counted;

commit;
