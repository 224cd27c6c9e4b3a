"""Look for transactions that others wait for, or that hold back vacuum."""

from __future__ import annotations

from typing import Any, Final

from holdfast.database.schema import Connection
from holdfast.insight.findings import Finding
from holdfast.insight.wording import length

_LONG_SECONDS: Final = 300
_IDLE_SECONDS: Final = 10  # a worker warns of its own then
_TABLE_SECONDS: Final = 2

# Modes of a lock on a table in which it keeps out those who write, and perhaps those who read.
_STRONG: Final = "('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"

_OLDEST_TRANSACTION = """
select extract(epoch from now() - xact_start)::float8 as seconds, pid, application_name
from pg_stat_activity
where backend_xmin is not null and pid <> pg_backend_pid() and datname = current_database()
order by xact_start
limit 1
"""
# One that has an id has written, or locked rows; another one may have locked tables.
_IDLE_TRANSACTION = f"""
select extract(epoch from now() - state_change)::float8 as seconds, pid, application_name
from pg_stat_activity a
where state like 'idle in transaction%' and datname = current_database()
    and (backend_xid is not null or exists (
        select from pg_locks l
        where l.pid = a.pid and l.granted and l.locktype = 'relation'
            and l.mode in {_STRONG}))
order by state_change
limit 1
"""
_UNSEEN_SESSIONS = """
select exists (select from pg_stat_activity
    where datname = current_database() and query = '<insufficient privilege>')
"""
_PREPARED_TRANSACTION = """
select extract(epoch from now() - prepared)::float8 as seconds, gid
from pg_prepared_xacts where database = current_database() order by prepared limit 1
"""
# A statement that has locked tables of the schema, or waits for that before others: VACUUM FULL.
_LOCKING = f"""
select extract(epoch from now() - a.xact_start)::float8 as seconds, a.pid, a.application_name,
    string_agg(distinct format('%I.%I', $1::text, c.relname), ', ') as tables,
    (pg_blocking_pids(a.pid))[1] as waits_for
from pg_stat_activity a
join pg_locks l on l.pid = a.pid
join pg_class c on c.oid = l.relation
where coalesce(a.state, 'active') = 'active' and a.pid <> pg_backend_pid()
    and a.datname = current_database()
    and c.relnamespace = to_regnamespace(quote_ident($1::text)) and c.relkind in ('r', 'p')
    and l.mode in {_STRONG}
group by a.pid, a.application_name, a.xact_start
order by cardinality(pg_blocking_pids(a.pid)), a.xact_start
limit 1
"""


async def check_transactions(connection: Connection, schema: str) -> Finding:
    """Look for one that is idle with locks, has locked a table, or holds back vacuum."""
    row = await connection.fetchrow(_PREPARED_TRANSACTION)
    if row is not None and row["seconds"] >= _IDLE_SECONDS:
        gid = row["gid"].replace("'", "''")
        return Finding(
            "transactions",
            "warn",
            f"the prepared transaction {row['gid']!r} has been open for "
            f"{length(int(row['seconds'] * 1e6))}, and keeps its locks",
            f"end it: commit prepared '{gid}', or rollback prepared '{gid}'",
        )
    row = await connection.fetchrow(_LOCKING, schema)
    if row is not None and (row["seconds"] is None or row["seconds"] >= _TABLE_SECONDS):
        return _locking(row)
    row = await connection.fetchrow(_IDLE_TRANSACTION)
    what = "idle for {}, and keeps its locks: its program has perhaps stopped"
    if row is None or (row["seconds"] or 0) < _IDLE_SECONDS:
        row = await connection.fetchrow(_OLDEST_TRANSACTION)
        what = "open for {} and holds back vacuum, which slows claiming"
        if row is None or (row["seconds"] or 0) < _LONG_SECONDS:
            unseen = await connection.fetchval(_UNSEEN_SESSIONS)
            of = "of those that this role may see (see pg_read_all_stats), " if unseen else ""
            what = "none holds locks while it is idle, or holds back vacuum"
            return Finding("transactions", "ok", of + what)
    return Finding(
        "transactions",
        "warn",
        f"one of process {row['pid']} ({row['application_name'] or 'unnamed'}) has been "
        f"{what.format(length(int(row['seconds'] * 1e6)))}",
        f"end it: select pg_terminate_backend({row['pid']})",
    )


def _locking(row: Any) -> Finding:
    """Return what is said of a statement that has locked tables, or waits for that."""
    holder, pid, tables = row["waits_for"], row["pid"], row["tables"]
    long = "" if row["seconds"] is None else f" for {length(int(row['seconds'] * 1e6))}"
    what = f"has had {tables} locked{long}: others wait for it"
    if holder is not None:  # 0 is a prepared transaction
        who = f"process {holder}" if holder else "a prepared transaction"
        what = f"has waited{long} to lock {tables}, which {who} uses: others wait behind it"
    return Finding(
        "transactions",
        "warn",
        f"process {pid} ({row['application_name'] or 'unnamed'}) {what}",
        f"let it end, or end it: select pg_terminate_backend({holder or pid})",
    )
