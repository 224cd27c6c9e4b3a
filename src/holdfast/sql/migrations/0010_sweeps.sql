-- Workers that work for a limited time: a sweep says when it will have ended.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (10, 'sweeps');

alter table holdfast.workers
    add column ends_at timestamptz;  -- null: it works until it is stopped

commit;
