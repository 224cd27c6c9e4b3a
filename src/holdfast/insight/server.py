"""Check the database server: its answers, its settings, and its clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from holdfast.insight.findings import Finding

if TYPE_CHECKING:
    from holdfast.database.schema import Connection

_CLOCK_WARN_SECONDS: Final = 5.0
_SHORT_STATEMENT_SECONDS: Final = 10


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
            f"set {off[0]} = on in the server's configuration",
        )
    return Finding("durability", "ok", "a commit survives a crash of the server")


async def check_settings(connection: Connection) -> Finding:
    """Check that the role's sessions may write, at the right isolation, and for long enough."""
    if await connection.fetchval("show transaction_read_only") == "on":
        return Finding(
            "settings",
            "fail",
            "the database takes no writes: it is a standby, or default_transaction_read_only is on",
            "look for the reason first: hosts set it when a disk is full",
        )
    isolation = await connection.fetchval("show default_transaction_isolation")
    if isolation != "read committed":
        return Finding(
            "settings",
            "warn",
            f"default_transaction_isolation is {isolation!r}: calls that meet are repeated",
            "alter role … set default_transaction_isolation = 'read committed'",
        )
    most = await connection.fetchval(
        "select setting::int from pg_settings where name = 'statement_timeout'"
    )
    if 0 < most < _SHORT_STATEMENT_SECONDS * 1000:
        return Finding(
            "settings",
            "warn",
            f"statement_timeout is {most} ms: the server stops calls that take longer",
            "alter role … set statement_timeout = 0",
        )
    return Finding("settings", "ok", "sessions may write, at read committed, without a short limit")


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
