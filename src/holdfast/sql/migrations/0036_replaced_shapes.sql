-- Shapes of flows that were replaced under the same version: runs that ended before have them.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (36, 'replaced_shapes');

create table holdfast.replaced_shapes (
    handler text not null,
    replaced_at timestamptz not null,  -- runs that were created before have this shape
    shape jsonb not null,
    primary key (handler, replaced_at)
);

commit;
