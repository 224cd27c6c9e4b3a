"""The rights of roles on a schema: of its owner, and granted to those that work with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import asyncpg

from holdfast.database.scripts import in_schema
from holdfast.errors import DatabaseUnavailable, InsufficientRights

if TYPE_CHECKING:
    from holdfast.database.schema import Connection, SchemaState

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
_GRANTS = """
grant usage on schema holdfast to {role};
grant select, insert, update, delete on all tables in schema holdfast to {role};
grant usage on all sequences in schema holdfast to {role};
grant execute on all functions in schema holdfast to {role};
"""
_LACKING = """
select c.relname::text
from pg_class c
where c.relnamespace = $1::regnamespace and c.relkind = 'r' and not (
    has_table_privilege(c.oid, 'select') and (c.relname like 'schema!_%' escape '!'
        or has_table_privilege(c.oid, 'insert') and has_table_privilege(c.oid, 'update')
            and has_table_privilege(c.oid, 'delete')))
union all
select 'sequence ' || c.relname
from pg_class c
where c.relnamespace = $1::regnamespace
    and case c.relkind when 'S' then not has_sequence_privilege(c.oid, 'usage') end
union all
select 'function ' || p.proname
from pg_proc p
where p.pronamespace = $1::regnamespace and not has_function_privilege(p.oid, 'execute')
order by 1
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


async def grant(connection: Connection, schema: str, roles: Sequence[str]) -> None:
    """Grant rights on the schema to roles, and to the roles that already work with it.

    Call it in the transaction that changed the schema. Raises InsufficientRights for a role that
    does not exist, or to which the caller may not grant anything.
    """
    holders = [row[0] for row in await connection.fetch(_HOLDERS, schema)]
    for role in dict.fromkeys([*roles, *holders]):
        quoted = await connection.fetchval("select quote_ident($1)", role)
        try:
            await connection.execute(in_schema(_GRANTS, schema).format(role=quoted))
        except (asyncpg.UndefinedObjectError, asyncpg.InsufficientPrivilegeError) as error:
            raise InsufficientRights(
                f"role {role!r} cannot be given its rights on schema {schema!r}: {error}. Nothing "
                "was changed: make the role first, or migrate as the schema's owner"
            ) from error


async def lacking(connection: Connection, schema: str) -> list[str]:
    """Return the tables, sequences and functions that the connection's role may not use."""
    return [row[0] for row in await connection.fetch(_LACKING, schema)]
