-- Large payloads: whose objects there are outside of the database, and when they are deleted.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (17, 'large_payloads');

-- A run that has objects at a URL, or is about to have some: the row is there before the first
-- object, and until after the last one. So there is no object that no row knows of.
create table holdfast.payload_owners (
    owner uuid not null,
    url text not null,
    noted_at timestamptz not null,  -- an object was put after this, or is about to be
    due_at timestamptz,  -- when to look whether the objects are needed; null: the run is there
    removed_until timestamptz,  -- a sweeper deletes the objects until then
    constraint payload_owners_pkey primary key (owner, url)
);
create index payload_owners_due on holdfast.payload_owners (due_at) where due_at is not null;

-- A run that refers to objects of another one. They are kept for it when their owner is deleted.
create table holdfast.payload_users (
    run_id uuid not null,
    owner uuid not null,
    constraint payload_users_pkey primary key (run_id, owner)
);
create index payload_users_owner on holdfast.payload_users (owner);

commit;
