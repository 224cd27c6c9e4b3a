"""Who has the locks that a migration waits for, in words."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.database.schema import Connection

_SHOWN = 5

# $1: tables. With none, the advisory lock of migrations ($2), whose key is stored in two halves.
_HOLDERS = """
select l.pid, a.application_name as application, a.usename as role, a.state,
    to_char(a.xact_start at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as since,
    string_agg(distinct l.relation::regclass::text, ', ') as tables
from pg_catalog.pg_locks l
left join pg_catalog.pg_stat_activity a on a.pid = l.pid
where l.granted and l.pid is distinct from pg_backend_pid()
    and l.database = (select oid from pg_catalog.pg_database where datname = current_database())
    and case when cardinality($1::text[]) > 0
        then l.relation in (select to_regclass(name) from unnest($1) as name)
        else l.locktype = 'advisory' and l.objsubid = 1
            and l.classid::bigint << 32 | l.objid::bigint = hashtext($2)
        end
group by l.pid, a.application_name, a.usename, a.state, a.xact_start
order by a.xact_start nulls first
"""

_LOCKED = """
select distinct c.oid::regclass::text
from pg_catalog.pg_locks l join pg_catalog.pg_class c on c.oid = l.relation
where l.granted and l.mode = 'AccessExclusiveLock' and l.pid is distinct from pg_backend_pid()
    and c.relnamespace = to_regnamespace(quote_ident($1))
    and l.database = (select oid from pg_catalog.pg_database where datname = current_database())
"""

_PLACE = """
select quote_literal(current_database()) || coalesce(' at ' || host(inet_server_addr()) || ':'
    || inet_server_port(), '')
"""


async def describe_place(connection: Connection, schema: str) -> str:
    """Return which schema of which database it is, with the server's address over TCP."""
    return f"schema {schema!r} of database {await connection.fetchval(_PLACE)}"


async def locked_tables(connection: Connection, schema: str) -> list[str]:
    """Return the tables and indexes of a schema that others have to themselves."""
    return [row[0] for row in await connection.fetch(_LOCKED, schema)]


async def describe_holders(connection: Connection, tables: Sequence[str], lock: str) -> str:
    """Return who has tables, or the advisory lock if none is named; "" if nobody has them now."""
    rows = await connection.fetch(_HOLDERS, list(tables), lock)
    told = [_describe(row["pid"], dict(row)) for row in rows[:_SHOWN]]
    if len(rows) > _SHOWN:
        told.append(f"{len(rows) - _SHOWN} more")
    return "; ".join(told)


def _describe(pid: int | None, row: dict[str, str | None]) -> str:
    what = row["tables"] or "the lock of migrations"
    if pid is None:
        return f"a prepared transaction (see pg_prepared_xacts) has {what}"
    # What another role's session does, a role without rights does not see.
    about = [row["application"], row["role"] and f"role {row['role']}", row["state"]]
    about += [row["since"] and f"in a transaction since {row['since']} UTC"]
    known = ", ".join(filter(None, about)) or "of another role"
    return f"process {pid} ({known}) has {what}: select pg_terminate_backend({pid}) ends it"
