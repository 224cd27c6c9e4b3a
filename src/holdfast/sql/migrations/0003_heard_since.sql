-- Since when a worker has been heard without a gap: only such a one may call another silent.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (3, 'heard_since');

alter table holdfast.workers add column heard_since timestamptz;
update holdfast.workers set heard_since = started_at;
alter table holdfast.workers alter column heard_since set not null;

commit;
