"""What a database counts of its calls, between two moments."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import asyncpg

SETTLE_SECONDS = 11.0  # after which idle backends have reported what they counted

# What a database has counted so far, once its backends have reported it.
COUNTS = """
select (select xact_commit + xact_rollback from pg_stat_database
        where datname = current_database()),
    coalesce((select sum(calls) from pg_stat_user_functions where funcname = 'claim_tasks'), 0),
    coalesce((select sum(calls) from pg_stat_user_functions where funcname = 'commit'), 0)
"""


class Counts(NamedTuple):
    """What was counted, and in how many seconds."""

    statements: int
    claims: int
    commits: int
    seconds: float

    def since(self, before: Counts) -> Counts:
        return Counts(
            self.statements - before.statements,
            self.claims - before.claims,
            self.commits - before.commits,
            self.seconds - before.seconds,
        )

    def beyond(self, idle: Counts, runs: int) -> tuple[float, float, float]:
        """Return what each of so many runs cost beyond what idle workers do in that time."""
        share = self.seconds / idle.seconds
        return (
            (self.statements - share * idle.statements) / runs,
            (self.claims - share * idle.claims) / runs,
            (self.commits - share * idle.commits) / runs,
        )


async def count_now(connection: asyncpg.Connection[Any]) -> Counts:
    """Return what was reported so far: of busy backends all but the last second."""
    row = await connection.fetchrow(COUNTS)
    assert row is not None, "a query without FROM has one row"
    return Counts(int(row[0]), int(row[1]), int(row[2]), time.monotonic())


async def count(connection: asyncpg.Connection[Any]) -> Counts:
    """Return what was counted so far, of idle backends too."""
    await asyncio.sleep(SETTLE_SECONDS)
    return await count_now(connection)
