"""The rights of roles that work with a schema and do not own it: granted, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import asyncpg

from holdfast.database.scripts import in_schema
from holdfast.errors import InsufficientRights

if TYPE_CHECKING:
    from holdfast.database.schema import Connection

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
select 'function ' || p.proname
from pg_proc p
where p.pronamespace = $1::regnamespace and not has_function_privilege(p.oid, 'execute')
order by 1
"""


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
    """Return the tables and functions of a schema that the connection's role may not use."""
    return [row[0] for row in await connection.fetch(_LACKING, schema)]
