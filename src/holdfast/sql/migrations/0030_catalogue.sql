-- What code says of its workflows and flows, for programs that do not have the code.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (30, 'catalogue');

create table holdfast.catalogue (
    name text primary key,  -- app/name
    version int not null,  -- of the code that said it
    input_schema json,  -- null if the type of the input has none, or a very large one
    about text not null,
    constraint catalogue_version_is_positive check (version > 0)
);

commit;
