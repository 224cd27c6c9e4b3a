"""A worker that is stopped in its transaction, and loses its lease meanwhile, commits nothing.

Each try stops a worker process (SIGSTOP) within a transaction or just before or after its commit,
gives what it holds to another worker, lets that finish if it can, and lets the first one continue.
Then there is one row and one record of each call.

    python -m tests.crash.stale_transactions --tries 1000
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NoReturn

import asyncpg
import psycopg

from holdfast import App, Context
from holdfast.client import Client
from holdfast.database.embedded import EmbeddedServer
from holdfast.database.migrate import prepare_schema
from holdfast.store.postgres import PostgresStore, asyncpg_connector, connectors
from holdfast.worker import Worker, WorkerOptions
from holdfast.worker.claimer import Claimable
from tests.crash.processes import processes

POINTS: Final = (
    "after the code's statement",
    "before the record",
    "after the record",
    "before the commit",
    "after the commit",
    "after the code's statement, by asyncpg",
    "before the record and the commit, which are one message",
    "after the commit, by asyncpg",
)
BY_ASYNCPG: Final = 5  # points from this one on
RECORDED: Final = (2, 3, 4, 7)  # the row of the lease is locked until the commit
_MOMENT: Final = 0.05  # seconds in which a take-over that need not wait is done

app = App("stale")
OPTIONS: Final = WorkerOptions(poll_seconds=0.2)


class Stops:
    """Stops the process at a point of the transaction that runs."""

    told: Connection | None = None  # None in a process that is not to stop

    def __init__(self) -> None:
        self.at = self.passed = -1
        self.rooms: set[int] = set()

    def begin(self, room: int) -> None:
        """Count points from the statement of the code on; each room stops the process once."""
        self.at = -1 if self.told is None or room in self.rooms else room % len(POINTS) % BY_ASYNCPG
        self.rooms.add(room)
        self.passed = -1
        self.pass_point()

    def pass_point(self) -> None:
        """Stop here, if this is the point."""
        self.passed += 1
        if self.passed == self.at and self.told is not None:
            self.at = -1
            self.told.send(os.getpid())
            os.kill(os.getpid(), signal.SIGSTOP)


stops = Stops()


@app.transaction
async def book(connection: psycopg.AsyncConnection, room: int) -> int:
    """Book a room."""
    await connection.execute("insert into public.rooms values (%s)", [room])
    stops.begin(room)
    return room


@app.transaction
async def book_by_asyncpg(connection: asyncpg.Connection, room: int) -> int:
    """Book a room."""
    await connection.execute("insert into public.rooms values ($1)", room)
    stops.begin(room)
    return room


@app.workflow
async def stay(ctx: Context, room: int) -> int:
    """Book a room in a run."""
    by_asyncpg = room % len(POINTS) >= BY_ASYNCPG
    return await (book_by_asyncpg if by_asyncpg else book)(room)


def serve(url: str, told: Connection) -> None:
    """Be the worker that is stopped."""
    stops.told = told
    for name in ("execute", "finish"):
        watch(connectors._Psycopg, name)
    watch(asyncpg_connector.AsyncpgSession, "commit_with")
    asyncio.run(_serve(url))


def watch(session: type, name: str) -> None:
    """Pass a point before and after a statement of each transaction."""
    call = getattr(session, name)

    async def watched(*given: Any) -> Any:
        stops.pass_point()
        answer = await call(*given)
        stops.pass_point()
        return answer

    setattr(session, name, watched)


async def _serve(url: str) -> NoReturn:
    make_store = PostgresStore
    worker = Worker(app, make_store(url), OPTIONS, heartbeat_store=lambda: make_store(url))
    await worker.start()
    while True:
        await asyncio.sleep(3600)


class Gated(Worker):
    """A worker that claims only while its gate is open."""

    is_open = False

    def _limit_claims(self, claimable: Claimable | None) -> Claimable | None:
        def limited(room: int, wake: Callable[[], None]) -> tuple[int, Sequence[str]]:
            if not self.is_open:
                return 0, self.info.handlers
            return (room, self.info.handlers) if claimable is None else claimable(room, wake)

        return limited

    def open(self) -> None:
        """Claim from now on."""
        self.is_open = True
        self._claimer.wake()


class Contest:
    """Two workers on one run at a time: one is stopped, the other takes over."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen = Counter[str]()
        self._lost: list[str] = []  # the worker that is stopped
        self._here, self._there = processes.Pipe(duplex=False)
        self._stopped = processes.Process(target=serve, args=(url, self._there), daemon=True)

    async def run(self, rooms: Sequence[int]) -> None:
        """Book rooms; each is one try. Raises AssertionError for one that is not booked once."""
        store = PostgresStore(self.url)
        await store.open()
        watcher = await asyncpg.connect(self.url)
        await watcher.execute("create table public.rooms (room int)")
        other = Gated(app, store, OPTIONS, heartbeat_store=lambda: PostgresStore(self.url))
        self._stopped.start()
        await other.start()
        try:
            async with Client(self.url, app=app) as client:
                for room in rooms:
                    await self._try(client, store, other, room)
            await self._count(watcher, rooms)
        finally:
            self._stopped.kill()
            self._stopped.join()
            await other.stop(grace=1)
            await watcher.execute("drop table public.rooms")
            await watcher.close()
            await store.close()

    async def _try(self, client: Client, store: PostgresStore, other: Gated, room: int) -> None:
        handle = await client.start(stay, room)
        end = asyncio.ensure_future(handle.result(timeout=60))
        while not self._here.poll():
            if end.done():  # by a claim that was under way when the gate was closed
                self.seen["not stopped"] += 1
                return
            await asyncio.sleep(0.002)
        pid = self._here.recv()
        await asyncio.to_thread(_until_stopped, pid)
        if not self._lost:  # later it is listed only once it has sent another heartbeat
            ids = [each.worker_id for each in await store.list_workers()]
            self._lost = [each for each in ids if each != other.worker_id]
        other.open()
        taking = asyncio.ensure_future(store.reap_workers(worker_ids=self._lost))
        try:
            if room % len(POINTS) not in RECORDED:
                await asyncio.wait([end])
            else:
                await asyncio.wait([end], timeout=_MOMENT)
            self.seen["taken over" if end.done() else "waited for"] += 1
        finally:
            os.kill(pid, signal.SIGCONT)
        _, notices = await taking
        await store.notify(notices)
        assert await end == room
        other.is_open = False
        while other._claimer._claiming or not other._claimer.idle:
            await asyncio.sleep(0.001)

    async def _count(self, watcher: asyncpg.Connection, rooms: Sequence[int]) -> None:
        """Demand a row and a record of each room, and no more."""
        rows = await watcher.fetch("select room from public.rooms order by room")
        assert [row[0] for row in rows] == sorted(rooms), "a row of each room"
        records = await watcher.fetch(
            "select count(*) from holdfast.events where key like 'book%' group by run_id"
        )
        assert [row[0] for row in records] == [1] * len(rooms), "a record of each run"


def _until_stopped(pid: int) -> None:
    while "T (stopped)" not in Path(f"/proc/{pid}/status").read_text():
        time.sleep(0.001)


def rooms_of(tries: int, seed: int = 0) -> list[int]:
    """Return a room for each try: its number says at which point the worker is stopped."""
    chance = random.Random(seed)
    points = [n % len(POINTS) for n in range(tries)]
    chance.shuffle(points)
    return [n * len(POINTS) + point for n, point in enumerate(points)]


def main() -> int:
    """Make the tries on an embedded database."""
    parser = argparse.ArgumentParser("python -m tests.crash.stale_transactions")
    parser.add_argument("--tries", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the points")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, EmbeddedServer.acquire(Path(home)) as server:
        asyncio.run(prepare_schema(server.url))
        contest = Contest(server.url)
        with suppress(KeyboardInterrupt):
            asyncio.run(contest.run(rooms_of(given.tries, given.seed)))
            print(f"{given.tries} tries: one row and one record each; {dict(contest.seen)}")
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
