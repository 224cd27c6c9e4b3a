"""The rights of roles on a schema: of its owner, and granted to those that work with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

import asyncpg

from holdfast.database.schema import Connection, SchemaState
from holdfast.database.scripts import in_schema, load_scripts
from holdfast.errors import DatabaseUnavailable, InsufficientRights, InvalidInput
from holdfast.values.texts import check_text

# Of what migrations have made. Extensions and users may have put other things into the schema.
_OWNERS = """
select pg_get_userbyid(relowner)
from pg_class
where relnamespace = $1::regnamespace and relname = any ($2::text[])
union
select pg_get_userbyid(p.proowner)
from holdfast.schema_functions f
join pg_proc p on p.oid = to_regprocedure(f.signature)
where not exists (
    select from pg_depend where classid = 'pg_proc'::regclass and objid = p.oid and deptype = 'e')
"""
_SCHEMA_OWNER = "select pg_get_userbyid(nspowner) from pg_namespace where nspname = $1"
_MAY_CREATE = """
select n.oid is not null as made, case when n.oid is null
    then has_database_privilege(d.oid, 'create') else has_schema_privilege(n.oid, 'create') end
from pg_database d left join pg_namespace n on n.nspname = $1 where d.datname = current_database()
"""

# Roles that may insert runs work with the schema: each of them gets rights on what is new.
_HOLDERS = """
select pg_get_userbyid(a.grantee)
from pg_class c, aclexplode(c.relacl) as a
where c.relnamespace = $1::regnamespace and c.relname = 'runs' and a.privilege_type = 'INSERT'
    and a.grantee <> 0 and a.grantee <> c.relowner
"""
# What is holdfast's own: users and extensions may have other things in the schema.
_OWN = """
select case relkind when 'S' then 'sequence' else 'table' end as kind, c.oid,
    c.oid::regclass::text as place, c.relname::text as name
from pg_class c
where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'S') and (
    c.relname = any ($2::text[]) or exists (
        select from pg_depend d
        join pg_class t on t.oid = d.refobjid
        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('a', 'i')
            and c.relkind = 'S' and t.relname = any ($2::text[])))
union all
select 'function', p.oid, p.oid::regprocedure::text, p.proname::text
from pg_proc p
where p.pronamespace = $1::regnamespace and p.proname = any ($2::text[])
    and p.proowner = (  -- others may have functions of these names, with other arguments
        select relowner from pg_class where relnamespace = $1::regnamespace and relname = 'runs')
    and not exists (
        select from pg_depend d
        where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
"""
_RIGHTS = {"table": "select, insert, update, delete", "sequence": "usage", "function": "execute"}
_LACKING = f"""
select case kind when 'table' then name else kind || ' ' || name end
from ({_OWN}) as own
where not case kind
    when 'table' then has_table_privilege(oid, 'select') and (name like 'schema!_%' escape '!'
        or has_table_privilege(oid, 'insert') and has_table_privilege(oid, 'update')
            and has_table_privilege(oid, 'delete'))
    when 'sequence' then has_sequence_privilege(oid, 'usage')
    else has_function_privilege(oid, 'execute') end
order by kind <> 'table', kind, name
"""


async def act_as_owner(connection: Connection, state: SchemaState, names: Collection[str]) -> bool:
    """Let what is made in this transaction belong to the owner of what migrations have made.

    Return True if there is the schema. `names` are those of the migrations' tables.

    A member of the owner's role, or a superuser, would otherwise own what is new; if what is there
    has several owners, it still does. Before the first migration, the owner is the schema's own,
    unless the role may create there and is not a member. Raises InsufficientRights if a migration
    would fail, and DatabaseUnavailable for a database that takes no writes.
    """
    if await connection.fetchval("show transaction_read_only") == "on":
        raise DatabaseUnavailable(
            "nothing was changed, because the database takes no writes: it is a standby, or "
            "default_transaction_read_only is on"
        )
    schema = state.schema
    if state.exists:
        rows = await connection.fetch(in_schema(_OWNERS, schema), schema, list(names))
        if len(rows) == 1:
            await _become(connection, schema, rows[0][0])
    elif (owner := await connection.fetchval(_SCHEMA_OWNER, schema)) is not None:
        with suppress(InsufficientRights):
            async with connection.transaction():
                await _become(connection, schema, owner)
    found = await connection.fetchrow(_MAY_CREATE, schema)
    assert found is not None, "there is always a current database"
    if not found[1]:
        role = await connection.fetchval("select current_user")
        raise InsufficientRights(
            f"role {role!r} may not create what schema {schema!r} lacks: nothing was changed; "
            "migrate as the schema's owner, or have the right to create there granted"
        )
    return bool(found[0])


async def _become(connection: Connection, schema: str, owner: str) -> None:
    role = await connection.fetchval("select current_user")
    if role == owner:
        return
    quoted = await connection.fetchval("select quote_ident($1)", owner)
    try:
        await connection.execute(f"set local role {quoted}")
    except asyncpg.InsufficientPrivilegeError as error:
        raise InsufficientRights(
            f"schema {schema!r} belongs to role {owner!r}, of which role {role!r} is not a "
            f"member: nothing was changed; migrate as {owner!r}"
        ) from error


async def grant(
    connection: Connection, schema: str, roles: Sequence[str], names: Collection[str]
) -> None:
    """Grant rights on what is holdfast's to roles, and to the roles that already work with it.

    `names` are those of what holdfast has made. Call it in the transaction that changed the schema.
    Raises InsufficientRights for a role that does not exist, or to which the caller may not grant
    anything, and InvalidInput for a name that no role can have.
    """
    for role in roles:
        check_role(role)
    holders = [row[0] for row in await connection.fetch(_HOLDERS, schema)]
    if not (roles or holders):
        return
    places: dict[str, list[str]] = {kind: [] for kind in _RIGHTS}
    for kind, _, place, _ in await connection.fetch(_OWN, schema, list(names)):
        places[kind].append(place)
    grants = [f'grant usage on schema "{schema}"'] + [
        f"grant {_RIGHTS[kind]} on {kind} {', '.join(found)}"
        for kind, found in places.items()
        if found
    ]
    for role in dict.fromkeys([*roles, *holders]):
        quoted = await connection.fetchval("select quote_ident($1)", role)
        try:
            await connection.execute("".join(f"{each} to {quoted};\n" for each in grants))
        except (asyncpg.UndefinedObjectError, asyncpg.InsufficientPrivilegeError) as error:
            raise InsufficientRights(
                f"role {role!r} cannot be given its rights on schema {schema!r}: {error}. Nothing "
                "was changed: make the role first, or migrate as the schema's owner"
            ) from error


def check_role(role: str) -> str:
    """Return the name of a role as PostgreSQL can have it. Raises InvalidInput."""
    if role == "":
        raise InvalidInput("the name of a role is empty: write the role that workers log in with")
    return check_text("role", role)


async def lacking(connection: Connection, schema: str) -> list[str]:
    """Return holdfast's tables, sequences and functions that the connection's role may not use."""
    names = load_scripts().names
    return [row[0] for row in await connection.fetch(_LACKING, schema, list(names))]
