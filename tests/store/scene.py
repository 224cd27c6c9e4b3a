"""A database on which transactions are held open, so that tests force an interleaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg
from contract.actors import step

from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.commits import commit_arguments
from holdfast.store.postgres.packing import call_text
from holdfast.types import ClaimedTask, Event, Finish, Suspend, TurnCommit

T = TypeVar("T")
DEADLINE_SECONDS = 60.0


@dataclass
class Session:
    """A connection of its own; what it calls stays uncommitted inside `transaction`."""

    connection: asyncpg.Connection

    def transaction(self) -> Any:
        """Hold a transaction open for the length of the block."""
        return self.connection.transaction()

    async def call(self, function: str, *arguments: object) -> list[asyncpg.Record]:
        """Call a function of the schema."""
        text = call_text("holdfast", function, len(arguments))
        return await self.connection.fetch(text, *arguments)

    async def commit(
        self, worker_id: str, *turns: TurnCommit, token: UUID | None = None
    ) -> asyncpg.Record:
        """Call `commit`, waiting for locks as long as it takes."""
        arguments = commit_arguments(worker_id, token or uuid4(), turns)
        while True:
            try:
                [row] = await self.call("commit", *arguments)
                return row
            except asyncpg.LockNotAvailableError:  # as a worker does; the function waits 50 ms
                if self.connection.is_in_transaction():
                    raise


@dataclass
class Scene:
    """A migrated, empty database and a store on it."""

    url: str
    store: PostgresStore
    watcher: Session
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @classmethod
    @asynccontextmanager
    async def on(
        cls, url: str, *, connections: int = 8, kind: type[PostgresStore] = PostgresStore
    ) -> AsyncGenerator[Scene, None]:
        """Open a scene for the length of the block."""
        store = kind(url, connections=connections)
        await store.open()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(store.close)
            watcher = await asyncpg.connect(url)
            stack.push_async_callback(watcher.close)
            yield cls(url, store, Session(watcher), stack)

    async def session(self) -> Session:
        """Connect once more, until the scene ends."""
        connection = await asyncpg.connect(self.url)
        self.stack.push_async_callback(connection.close)
        return Session(connection)

    async def while_blocked(
        self, blocked: Coroutine[Any, Any, T], release: Callable[[], Awaitable[object]]
    ) -> T:
        """Start a call, wait until it stands at a lock, release it, and return its answer."""
        task = asyncio.create_task(blocked)
        await self.until_blocked()
        assert not task.done()
        await release()
        return await task

    async def until_blocked(self, count: int = 1) -> None:
        """Wait until so many backends stand at a lock."""
        query = """
            select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock'
        """
        await self.until(query, lambda blocked: blocked >= count)

    async def until_blocked_or(self, call: asyncio.Task[Any]) -> None:
        """Wait until a backend stands at a lock, or a call that need not wait has its answer."""
        blocked = asyncio.create_task(self.until_blocked())
        await asyncio.wait({blocked, call}, return_when=asyncio.FIRST_COMPLETED)
        blocked.cancel()

    async def until(self, query: str, holds: Callable[[Any], bool]) -> None:
        """Ask until the answer is right."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not holds(await self.watcher.connection.fetchval(query)):
                await asyncio.sleep(0.005)

    async def value(self, query: str, *arguments: object) -> Any:
        """Return the only value of a query."""
        return await self.watcher.connection.fetchval(query, *arguments)

    async def idx(self, run_id: UUID) -> list[int]:
        """Return the places of a run's events, in order."""
        query = "select idx from holdfast.events where run_id = $1 order by idx"
        return [row[0] for row in await self.watcher.connection.fetch(query, run_id)]


def turn(
    task: ClaimedTask,
    *events: Event,
    then: Suspend | Finish | None = None,
    expected: int | None = None,
) -> TurnCommit:
    """Return a turn's part, by default a step's end right behind the claim's log."""
    index = task.log_length if expected is None else expected
    return TurnCommit(task.run_id, task.lease_no, index, events or (step(),), then)


def yielded(
    task: ClaimedTask, *awaiting: str, until: int | None = None, expected: int | None = None
) -> TurnCommit:
    """Return a part that suspends."""
    event = Event("WorkflowTaskYielded", None, None, 0)
    return turn(task, event, then=Suspend(until, awaiting), expected=expected)


def finished(task: ClaimedTask, *, expected: int | None = None) -> TurnCommit:
    """Return a part that completes its run."""
    event = Event("WorkflowCompleted", None, None, 0)
    return turn(task, event, then=Finish("completed", "1"), expected=expected)
