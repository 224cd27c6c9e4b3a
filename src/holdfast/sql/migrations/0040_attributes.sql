-- Attributes of runs: a row each, so that a run without any costs nothing. A list by an attribute
-- reads one range of the index, newest runs first, and stops after a page.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (40, 'attributes');

create table holdfast.attributes (
    run_id uuid not null,
    name text not null,
    value json not null,  -- a text, a number or a boolean
    created_at timestamptz not null,  -- of the run
    primary key (run_id, name),
    constraint attributes_are_single_values check (
        json_typeof(value) in ('string', 'number', 'boolean'))
);

-- Texts of values are compared: who types a filter need not know if 7 is a number or a text.
create index attributes_by_value
    on holdfast.attributes (name, (value #>> '{}'), created_at, run_id);

commit;
