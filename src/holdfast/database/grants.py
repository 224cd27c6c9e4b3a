"""The rights of roles on a schema: of its owner, and granted to those that work with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import asyncpg

from holdfast.database.scripts import in_schema
from holdfast.errors import DatabaseUnavailable, InsufficientRights

if TYPE_CHECKING:
    from holdfast.database.schema import Connection

# The owners of all that is in the schema; while it is empty, its own; none if it does not exist.
_OWNERS = """
with schema as (select oid, nspowner from pg_namespace where nspname = $1),
owners as (
    select relowner as owner from pg_class where relnamespace = (select oid from schema)
    union
    select proowner from pg_proc where pronamespace = (select oid from schema)
)
select pg_get_userbyid(owner) from owners
union all
select pg_get_userbyid(nspowner) from schema
where not exists (select from owners) and pg_has_role(nspowner, 'member')
"""
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


async def act_as_owner(connection: Connection, schema: str) -> bool:
    """Let what is made in this transaction belong to the owner of all that is in the schema.

    Return True if there is the schema.

    A member of the owner's role, or a superuser, would otherwise own what is new; if what is there
    has several owners, it still does. Raises InsufficientRights if a migration would fail, and
    DatabaseUnavailable for a database that takes no writes.
    """
    if await connection.fetchval("show transaction_read_only") == "on":
        raise DatabaseUnavailable(
            "nothing was changed, because the database takes no writes: it is a standby, or "
            "default_transaction_read_only is on"
        )
    owners = [row[0] for row in await connection.fetch(_OWNERS, schema)]
    role = await connection.fetchval("select current_user")
    if len(owners) == 1 and owners[0] != role:
        quoted = await connection.fetchval("select quote_ident($1)", owners[0])
        try:
            await connection.execute(f"set local role {quoted}")
        except asyncpg.InsufficientPrivilegeError as error:
            raise InsufficientRights(
                f"schema {schema!r} belongs to role {owners[0]!r}, of which role {role!r} is not a "
                f"member: nothing was changed; migrate as {owners[0]!r}"
            ) from error
        role = owners[0]
    found = await connection.fetchrow(_MAY_CREATE, schema)
    assert found is not None, "there is always a current database"
    if not found[1]:
        raise InsufficientRights(
            f"role {role!r} may not create what schema {schema!r} lacks: nothing was changed; "
            "migrate as the schema's owner, or have the right to create there granted"
        )
    return bool(found[0])


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
