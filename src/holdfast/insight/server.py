"""Check the database server: its answers, its settings, and its clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from holdfast.insight.findings import Finding

if TYPE_CHECKING:
    from holdfast.database.schema import Connection

_CLOCK_WARN_SECONDS: Final = 5.0
# Settings of milliseconds: below how many seconds each is too short, and what happens then.
_SHORT: Final = {
    "statement_timeout": (10, "the server stops calls that take longer"),
    "transaction_timeout": (10, "the server ends sessions whose calls take longer"),
    "idle_in_transaction_session_timeout": (
        10,
        "the server ends transactional steps whose code pauses for longer",
    ),
    "idle_session_timeout": (10, "the server ends connections that wait, and others are made"),
    "lock_timeout": (1, "calls that meet the lock of another one for longer are refused"),
}
_A_WORKER: Final = 6  # connections, without those of transactional steps

# Those that are reserved are for superusers. The type of another role's session is null unless this
# role may see it: then it is one of a client if it has a role and a database.
_FREE_CONNECTIONS = """
with clients as (
    select usesysid, datid from pg_stat_activity
    where coalesce(backend_type, 'client backend') = 'client backend'
        and usesysid is not null and datid is not null
)
select least(
    case when r.rolconnlimit >= 0 and not r.rolsuper then r.rolconnlimit - (
        select count(*) from clients where usesysid = r.oid) end,
    case when d.datconnlimit >= 0 and not r.rolsuper then d.datconnlimit - (
        select count(*) from clients where datid = d.oid) end,
    current_setting('max_connections')::int - (select count(*) from clients)
        - case when r.rolsuper then 0 else
            current_setting('superuser_reserved_connections')::int
            + coalesce(current_setting('reserved_connections', true)::int, 0) end)
from pg_roles r, pg_database d
where r.rolname = current_user and d.datname = current_database()
"""


async def check_server(connection: Connection) -> Finding:
    """Report which server answers, and how fast."""
    began = time.perf_counter()
    await connection.fetchval("select 1")
    took = (time.perf_counter() - began) * 1000
    version = connection.get_settings().server_version.split()[0]  # "15.18 (Debian …)"
    return Finding("database", "ok", f"PostgreSQL {version} answers in {took:.1f} ms")


async def check_durability(connection: Connection) -> Finding:
    """Check that what the server has committed survives a crash."""
    names = ("fsync", "synchronous_commit", "full_page_writes")
    off = [name for name in names if await connection.fetchval(f"show {name}") == "off"]
    if off:
        return Finding(
            "durability",
            "warn",
            f"{', '.join(off)} off: a crash of the server may lose recorded steps",
            f"set {off[0]} = on where it was turned off: for the role, the database or the server",
        )
    return Finding("durability", "ok", "a commit survives a crash of the server")


async def check_settings(connection: Connection) -> list[Finding]:
    """Check that the role's sessions may write, at the right isolation, and for long enough."""
    if await connection.fetchval("show transaction_read_only") == "on":
        return [
            Finding(
                "settings",
                "fail",
                "the database takes no writes: it is a standby, or default_transaction_read_only "
                "is on",
                "look for the reason first: hosts set it when a disk is full",
            )
        ]
    found: list[Finding] = []
    isolation = await connection.fetchval("show default_transaction_isolation")
    if isolation != "read committed":
        what = f"default_transaction_isolation is {isolation!r}: calls that meet are repeated"
        remedy = "alter role … set default_transaction_isolation = 'read committed'"
        found.append(Finding("settings", "warn", what, remedy))
    rows = await connection.fetch(
        "select name, reset_val::int from pg_settings where name = any ($1::text[])", list(_SHORT)
    )
    for name, millis in rows:
        least, effect = _SHORT[name]
        if 0 < millis < least * 1000:
            what = f"{name} is {millis} ms: {effect}"
            found.append(Finding("settings", "warn", what, f"alter role … set {name} = 0"))
    well = "sessions may write, at read committed, without a short limit"
    return found or [Finding("settings", "ok", well)]


async def check_connections(connection: Connection) -> Finding:
    """Check that a worker can still connect, as this role."""
    free = await connection.fetchval(_FREE_CONNECTIONS)
    if free >= _A_WORKER:
        return Finding("connections", "ok", f"{free} more can be made")
    return Finding(
        "connections",
        "warn",
        f"{max(free, 0)} more can be made, and a worker makes up to {_A_WORKER}",
        "raise max_connections, or the limit of the role or of the database",
    )


async def check_clock(connection: Connection) -> Finding:
    """Compare this machine's clock with the clock of the database, which the engine uses."""
    sent = time.time()
    theirs = await connection.fetchval("select extract(epoch from clock_timestamp())::float8")
    answered = time.time()
    apart = float(theirs) - (sent + answered) / 2
    message = f"this machine is {abs(apart) * 1000:.0f} ms {'behind' if apart > 0 else 'ahead'}"
    if abs(apart) > _CLOCK_WARN_SECONDS:
        return Finding(
            "clock",
            "warn",
            f"{message}; timers follow the database, log lines of workers do not",
            "synchronise the clock (NTP)",
        )
    return Finding("clock", "ok", message)
