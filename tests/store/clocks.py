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
EMPTY = """
delete from holdfast.webhooks;
delete from holdfast.runs;
delete from holdfast.attributes;
delete from holdfast.events;
delete from holdfast.tasks;
delete from holdfast.workers;
delete from holdfast.waiters;
delete from holdfast.shard;
delete from holdfast.forwards;
delete from holdfast.pauses;
delete from holdfast.limits;
delete from holdfast.limit_holders;
delete from holdfast.limit_uses;
delete from holdfast.limit_corrections;
delete from holdfast.limit_turns;
delete from holdfast.flows;
delete from holdfast.steps;
delete from holdfast.deps;
delete from holdfast.replaced_shapes;
delete from holdfast.step_states;
delete from holdfast.schedule_buckets;
delete from holdfast.schedule_backfills;
delete from holdfast.schedule_sets;
delete from holdfast.subscriptions;
delete from holdfast.published_events;
delete from holdfast.http_deliveries;
delete from holdfast.alerts;
delete from holdfast.stats;
delete from holdfast.samples;
delete from holdfast.clock_steps;
delete from holdfast.schedules;
delete from holdfast.step_tasks;
delete from holdfast.builds;
delete from holdfast.build_routes;
delete from holdfast.declared_retentions;
delete from holdfast.apps;
delete from holdfast.catalogue;
delete from holdfast.payload_owners;
delete from holdfast.payload_users;
delete from holdfast.step_results;
delete from holdfast.streams;
delete from holdfast.stream_chunks;
delete from holdfast.stream_readers;
delete from holdfast.stream_writers;
delete from holdfast.ends_to_trace;
delete from holdfast.start_rules;
delete from holdfast.start_keys;
delete from holdfast.singleton_waits;
delete from holdfast.throttle_slots;
delete from holdfast.freed_singletons;
delete from holdfast.messages;
delete from holdfast.filtered_messages;
delete from holdfast.grouped_messages;
delete from holdfast.group_tokens;
delete from holdfast.bodies;
delete from holdfast.message_failures;
delete from holdfast.deliveries;
delete from holdfast.deduplications;
delete from holdfast.kept_messages;
delete from holdfast.limited_messages;
delete from holdfast.limited_groups;
delete from holdfast.queues;
update holdfast.sweeper set holder = null, held_until = null, begun_at = null, ended_at = null,
    deleted = 0, failed_at = null, error = null, archive = null;
delete from test.clock;
insert into test.clock select holdfast._moment($1);
"""
# As one statement, which the session keeps prepared: to plan each takes four times as long.
*FIRST, LAST = EMPTY.split(";")[:-1]
AT_ONCE = f"with {', '.join(f'part_{n} as ({part})' for n, part in enumerate(FIRST))} {LAST}"


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
        self._empty = in_schema(AT_ONCE, schema)
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
