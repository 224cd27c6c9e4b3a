"""Time that tests move, for each store.

PostgreSQL's engine time is read by every connection of a pool, so the tests' databases keep it
in a table: `holdfast.now()` reads it there instead of taking the session's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol, Self, cast

import asyncpg

from holdfast.database.scripts import DEFAULT_SCHEMA, in_schema
from holdfast.store.memory import MemoryStore, VirtualClock
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.types import Claims, LoggedEvent

START_AT = 1_767_225_600_000_000
INSTALL = """
set synchronous_commit = off;
create schema if not exists test;
create table if not exists test.clock (at timestamptz not null);
create or replace function holdfast.now() returns timestamptz
language sql stable as $$ select at from test.clock $$;
"""
EMPTIED = """
webhooks runs attributes events tasks workers waiters shard forwards pauses limits limit_holders
limit_uses limit_corrections limit_turns flows steps deps replaced_shapes step_states
schedule_buckets schedule_backfills schedule_sets subscriptions published_events http_deliveries
alerts stats samples clock_steps schedules step_tasks builds build_routes declared_retentions
apps catalogue payload_owners payload_users step_results streams stream_chunks stream_readers
stream_writers ends_to_trace start_rules start_keys singleton_waits throttle_slots
freed_singletons messages filtered_messages grouped_messages group_tokens bodies
message_failures deliveries deduplications kept_messages limited_messages limited_groups queues
""".split()
# One statement, which the session keeps prepared: to plan seventy takes forty times as long.
EMPTY = f"""
with {", ".join(f"in_{table} as (delete from holdfast.{table})" for table in EMPTIED)},
in_sweeper as (
    update holdfast.sweeper set holder = null, held_until = null, begun_at = null, ended_at = null,
        deleted = 0, failed_at = null, error = null, archive = null
),
in_clock as (delete from test.clock)
insert into test.clock select holdfast._moment($1)
"""


class Clock(Protocol):
    """Moves a store's time, which otherwise stands still."""

    async def advance(self, seconds: float) -> None:
        """Move on; less than nothing turns it back, as another session may see it."""
        ...


@dataclass
class MemoryClock:
    """The clock of the in-memory store."""

    store: MemoryStore

    async def advance(self, seconds: float) -> None:
        """Move on."""
        if seconds < 0:
            clock = cast("VirtualClock", self.store._clock)  # pyright: ignore[reportPrivateUsage]
            clock._now += round(seconds * 1_000_000)  # pyright: ignore[reportPrivateUsage]
        self.store.advance(max(0, seconds))


class PostgresClock:
    """The clock in a database's table; empties the engine's tables, too."""

    def __init__(self, connection: asyncpg.Connection, schema: str) -> None:
        self._connection, self._schema = connection, schema
        self._now = START_AT
        self._empty = in_schema(EMPTY, schema)
        self._move = in_schema("update test.clock set at = holdfast._moment($1)", schema)

    @classmethod
    @asynccontextmanager
    async def install(
        cls, url: str, *, schema: str = DEFAULT_SCHEMA, is_there: bool = False
    ) -> AsyncGenerator[Self, None]:
        """Empty the database, and let its time stand still. `is_there` if its template did."""
        connection = await asyncpg.connect(url)
        try:
            if not is_there:
                await connection.execute(in_schema(INSTALL, schema))
            clock = cls(connection, schema)
            await clock.reset()
            yield clock
        finally:
            await connection.close()

    async def execute(self, statement: str) -> None:
        """Execute a statement of a test in the database."""
        await self._connection.execute(in_schema(statement, self._schema))

    async def reset(self, now: int = START_AT) -> None:
        """Empty the database, and go to a moment."""
        self._now = now
        await self._connection.execute(self._empty, now)

    async def advance(self, seconds: float) -> None:
        """Move on."""
        await self.advance_to(self._now + round(seconds * 1_000_000))

    async def advance_to(self, at: int) -> None:
        """Move on to a moment."""
        self._now = at
        await self._connection.execute(self._move, at)


@dataclass
class Clocks:
    """The clocks of several databases, as one."""

    all: Sequence[Clock]

    async def advance(self, seconds: float) -> None:
        """Move on."""
        for each in self.all:
            await each.advance(seconds)


class ThoroughStore(PostgresStore):
    """A store whose every claim looks at everything that is due.

    Usually a claim passes over what was due long before, and looks there again a moment later:
    a moment of real time, which these tests do not spend.
    """

    async def claim_tasks(self, *args: object, **options: object) -> Claims:
        """Claim without a watermark."""
        self._watermarks.clear()
        return await super().claim_tasks(*args, **options)  # type: ignore[arg-type]

    is_as_new = True  # open, and nothing has listened

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        """Listen, on a connection of the store's own."""
        self.is_as_new = False
        return await super().listen(topic, callback)

    async def close(self) -> None:
        """Close every connection."""
        self.is_as_new = False
        await super().close()


async def recent_events(store: Store, *, since: int, limit: int = 1000) -> list[LoggedEvent]:
    """Return what happened in all runs since a moment, oldest first, with whole details."""
    found = await store.recent_log(since=since, limit=limit, clip=1 << 30)
    return [LoggedEvent(run_id, entry.idx, entry.event) for run_id, entry in found]
