"""Message queues beside pgmq, on one server: `python -m benchmarks.queues [--pgmq PATH]`.

PATH is pgmq's SQL, which is not part of this repository: `pgmq-extension/sql/pgmq.sql` of
github.com/pgmq/pgmq. Without it only holdfast is measured. Both are called over one connection
each, by turns, with the same payload. A figure is the median of the rounds; `cpu` is that of the
server's process of the connection, `WAL` what the server has written. A row `cycle` sends a batch,
receives it and acknowledges it. `a plain INSERT` is the least that a send can cost: one statement
into a table with one index. Work that other programs do at the same time disturbs all: compare
ratios, and those of the CPU before those of the time, which waits for the disk at each commit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from benchmarks.server import serve
from holdfast.client import Client
from holdfast.database.migrate import migrate

PAYLOAD = json.dumps({"id": 123456, "customer": "ann", "items": [7, 9], "note": "x" * 100})


class Holdfast:
    """Message queues of holdfast; acknowledgements travel with the next receive."""

    name = "holdfast"

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.since: list[int | None] | None = None
        self.acks: list[Any] = []
        self.looked_at = 0.0

    async def has_groups(self) -> bool:
        """Return True: there are FIFO queues."""
        return True

    async def create(self, fifo: bool) -> None:
        """Create the queue again."""
        await self.connection.execute("select holdfast.delete_queue('bench')")
        await self.connection.execute("select holdfast.create_queue('bench', $1)", fifo)
        self.since, self.acks = None, []

    async def send(self, count: int, groups: int = 0) -> None:
        """Send messages in one call."""
        if count == 1:
            await self.connection.fetchval("select holdfast.send('bench', $1)", PAYLOAD)
            return
        names = [f"g{n % groups}" for n in range(count)] if groups else None
        await self.connection.fetchval(
            "select holdfast.send_messages('bench', $1, null, $2)", [PAYLOAD] * count, names
        )

    async def take(self, limit: int, fifo: bool = False) -> int:
        """Receive, and acknowledge what was received before."""
        now = time.monotonic()
        if now - self.looked_at > 1:
            self.since, self.looked_at = None, now
        rows = await self.connection.fetch(
            "select * from holdfast.receive_messages('bench', $1, 30, 'c', $2, null, 1, $3, false)",
            limit,
            self.since,
            self.acks or None,
        )
        self.acks = [row["delivery_id"] for row in rows if row["delivery_id"] is not None]
        self.since = rows[-1]["newest"] if self.acks else None
        return sum(len(row["message_ids"] or ()) for row in rows)


class Pgmq:
    """pgmq: read, then delete."""

    name = "pgmq"

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def has_groups(self) -> bool:
        """Return True if this release reads by groups: 1.8 and later."""
        found = await self.connection.fetchval("select to_regproc('pgmq.read_grouped_rr')")
        return found is not None

    async def create(self, fifo: bool) -> None:
        """Create the queue again."""
        if await self.connection.fetchval("select true from pgmq.meta where queue_name = 'bench'"):
            await self.connection.execute("select pgmq.drop_queue('bench')")
        await self.connection.execute("select pgmq.create('bench')")

    async def send(self, count: int, groups: int = 0) -> None:
        """Send messages in one call."""
        if count == 1:
            await self.connection.fetchval("select pgmq.send('bench', $1::jsonb)", PAYLOAD)
        elif groups:
            heads = [json.dumps({"x-pgmq-group": f"g{n % groups}"}) for n in range(count)]
            await self.connection.fetch(
                "select pgmq.send_batch('bench', $1::jsonb[], $2::jsonb[])",
                [PAYLOAD] * count,
                heads,
            )
        else:
            await self.connection.fetch(
                "select pgmq.send_batch('bench', $1::jsonb[])", [PAYLOAD] * count
            )

    async def take(self, limit: int, fifo: bool = False) -> int:
        """Read, and delete what was read."""
        read = "read_grouped_rr" if fifo else "read"
        rows = await self.connection.fetch(
            f"select msg_id, message from pgmq.{read}('bench', 30, $1)", limit
        )
        if rows:
            ids = [row["msg_id"] for row in rows]
            await self.connection.fetch("select pgmq.delete('bench', $1::bigint[])", ids)
        return len(rows)


class Insert:
    """No queue: an INSERT, the least that a send can cost."""

    name = "insert"

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def create(self, fifo: bool) -> None:
        """Create the table again."""
        await self.connection.execute(
            "drop table if exists bench_insert; create table bench_insert "
            "(id bigint generated always as identity primary key, payload json)"
        )

    async def send(self, count: int, groups: int = 0) -> None:
        """Insert rows in one statement."""
        if count == 1:
            text = "insert into bench_insert (payload) values ($1) returning id"
            await self.connection.fetchval(text, PAYLOAD)
        else:
            text = "insert into bench_insert (payload) select unnest($1::json[]) returning id"
            await self.connection.fetch(text, [PAYLOAD] * count)


Queue = Holdfast | Pgmq


class Figures(NamedTuple):
    """What a message took: µs, µs of CPU of the server's process, and bytes of WAL."""

    time: float
    cpu: float
    wal: float


class Cost:
    """What a stretch of work takes."""

    def __init__(self, queue: Queue | Insert) -> None:
        self._connection = queue.connection
        self._pid = queue.connection.get_server_pid()

    async def begin(self) -> Cost:
        """Measure from now on."""
        self._wal = await self._written()
        self._cpu, self._began = self._used(), time.perf_counter()
        return self

    def _used(self) -> float:
        clock = (~self._pid << 3) | 2  # of another process; exact, unlike what /proc tells
        return time.clock_gettime(clock)

    async def _written(self) -> int:
        text = "select (pg_current_wal_insert_lsn() - '0/0')::bigint"
        return int(await self._connection.fetchval(text))

    async def per(self, count: int) -> Figures:
        """Return what each of so many messages has taken."""
        seconds, cpu = time.perf_counter() - self._began, self._used() - self._cpu
        wal = await self._written() - self._wal
        return Figures(seconds / count * 1e6, cpu / count * 1e6, wal / count)


async def sends(queue: Queue | Insert, count: int, batch: int) -> Figures:
    """Send messages in batches."""
    await queue.create(False)
    await queue.send(batch)
    cost = await Cost(queue).begin()
    for _ in range(count // batch):
        await queue.send(batch)
    return await cost.per(count)


async def receives(queue: Queue, count: int, batch: int, groups: int = 0) -> Figures:
    """Receive messages in batches, and acknowledge them."""
    await queue.create(bool(groups))
    for at in range(0, count, 1000):
        await queue.send(min(1000, count - at), groups)
    return await _drain(queue, count, batch, bool(groups))


async def _drain(queue: Queue, count: int, batch: int, fifo: bool) -> Figures:
    cost, got = await Cost(queue).begin(), 0
    while got < count:
        found = await queue.take(batch, fifo)
        if not found:
            raise RuntimeError(f"{queue.name}: {got} of {count} messages came")
        got += found
    await queue.take(batch, fifo)
    return await cost.per(count)


async def cycles(queue: Queue, count: int, batch: int) -> Figures:
    """Send a batch, receive it and acknowledge it, again and again."""
    await queue.create(False)
    await queue.send(batch)
    await queue.take(batch)
    cost = await Cost(queue).begin()
    for _ in range(count // batch):
        await queue.send(batch)
        if await queue.take(batch) != batch:
            raise RuntimeError(f"{queue.name}: a batch did not come whole")
    await queue.take(batch)
    return await cost.per(count)


async def among_many(queue: Queue, count: int, waiting: int) -> Figures:
    """Receive the first of very many messages."""
    await queue.create(False)
    for at in range(0, waiting, 10_000):
        await queue.send(min(10_000, waiting - at))
    await queue.connection.execute("analyze")
    return await _drain_some(queue, count)


async def _drain_some(queue: Queue, count: int) -> Figures:
    await queue.take(10)
    cost, got = await Cost(queue).begin(), 0
    while got < count:
        got += await queue.take(10)
    return await cost.per(got)


async def under_a_snapshot(url: str, queue: Queue, slices: int) -> Figures:
    """Send and receive while a transaction holds its snapshot; the cost of the last slice."""
    await queue.create(False)
    old = await asyncpg.connect(url)
    cost = Figures(0.0, 0.0, 0.0)
    async with old.transaction(isolation="repeatable_read"):
        await old.fetchval("select count(*) from pg_class")
        for _ in range(slices):
            for _ in range(2):
                await queue.send(500)
            cost = await _drain(queue, 1000, 10, False)
    await old.close()
    return cost


async def waiting_consumer(url: str, count: int) -> tuple[float, float]:
    """A consumer waits, a program sends: milliseconds from the send to the acknowledgement, p50.

    And how many statements a second the consumer makes while nothing is sent.
    """
    async with Client(url) as sender, Client(url) as consumer:
        await sender.queues.delete("bench")
        await sender.queues.create("bench")
        took: list[float] = []
        for _ in range(count + 3):
            wait = asyncio.create_task(consumer.queues.receive("bench", wait="30s"))
            await asyncio.sleep(0.3)
            began = time.perf_counter()
            await sender.queues.send("bench", 1)
            await consumer.queues.ack(await wait)
            took.append((time.perf_counter() - began) * 1e3)
        store, calls = consumer.queues._session.store, 0  # pyright: ignore[reportPrivateUsage]
        receive = store.receive_messages

        async def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return await receive(*arguments)

        store.receive_messages = counted  # type: ignore[method-assign]
        await consumer.queues.receive("bench", wait="10s")
    return statistics.median(took[3:]), calls / 10


Measure = Callable[[Queue], Awaitable[Figures]]


def measured(url: str, n: int) -> Sequence[tuple[str, Measure]]:
    """Return the rows: their names, and what measures them."""
    return (
        ("send one", lambda q: sends(q, 400 * n, 1)),
        ("send 100 at once", lambda q: sends(q, 4000 * n, 100)),
        ("receive and ack, 1 at once", lambda q: receives(q, 300 * n, 1)),
        ("receive and ack, 10 at once", lambda q: receives(q, 2000 * n, 10)),
        ("receive and ack, 100 at once", lambda q: receives(q, 4000 * n, 100)),
        ("cycle, 1 at once", lambda q: cycles(q, 300 * n, 1)),
        ("cycle, 100 at once", lambda q: cycles(q, 4000 * n, 100)),
        ("FIFO, 100 groups, 10 at once", lambda q: receives(q, 200 * n, 10, 100)),
        ("FIFO, 10,000 groups, 10 at once", lambda q: receives(q, 2000 * n, 10, 10_000)),
        ("under a held snapshot, 10 at once", lambda q: under_a_snapshot(url, q, 2 * n)),
        ("1,000,000 waiting, 10 at once", lambda q: among_many(q, 1000, 200_000 * n)),
    )


def show(name: str, columns: Sequence[Sequence[Figures]]) -> None:
    """Print a row: the medians of each column, and the ratios of the second to the first."""
    medians = [Figures(*map(statistics.median, zip(*each, strict=True))) for each in columns]
    ratios = ""
    if len(medians) > 1:
        ratios = " ".join(f"{b / a:6.2f}" for a, b in zip(*medians[:2], strict=True))
    cells = (f"{time:9.1f} {cpu:8.1f} {wal:6.0f}" for time, cpu, wal in medians)
    print(f"{name:36}", *cells, ratios, flush=True)


async def rows(url: str, queues: Sequence[Queue], quick: bool) -> None:
    """Measure row by row, by turns."""
    rounds, n = (1, 1) if quick else (3, 5)
    heads = (f"{queue.name + ': µs, cpu, WAL':>25}" for queue in queues)
    print(f"{'a message':36}", *heads, " ratios" if len(queues) > 1 else "")
    for name, measure in measured(url, n):
        some = [queue for queue in queues if "FIFO" not in name or await queue.has_groups()]
        found: list[list[Figures]] = [[] for _ in some]
        for _ in range(1 if "waiting" in name else rounds):
            for queue, figures in zip(some, found, strict=True):
                figures.append(await measure(queue))
        show(name, found)
        if name.startswith("send"):
            least = Insert(queues[0].connection)
            batch = 1 if "one" in name else 100
            show("  a plain INSERT", [[await sends(least, 400 * n * batch // 2, batch)]])
    p50, statements = await waiting_consumer(url, 4 * n)
    print(f"{'waiting consumer: send to ack, p50':36} {p50:11.1f} ms")
    print(f"{'waiting consumer: statements a second':36} {statements:11.1f}")


async def main(url: str, pgmq: str | None, quick: bool) -> None:
    """Install both, and measure."""
    connection = await asyncpg.connect(url)
    await migrate(connection)
    queues: list[Queue] = [Holdfast(connection)]
    if pgmq is not None:
        other = await asyncpg.connect(url)
        await other.execute("create schema if not exists pgmq")
        await other.execute(pgmq)
        queues.append(Pgmq(other))
    print("load before:", *os.getloadavg())
    await rows(url, queues, quick)
    print("load after:", *os.getloadavg())
    for queue in queues:
        await queue.connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", help="a database of a server of yours; default: embedded")
    parser.add_argument("--pgmq", type=Path, help="the file pgmq.sql; without it, only holdfast")
    parser.add_argument("--quick", action="store_true", help="a fifth of it, once")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, serve(given.database, Path(home)) as server:
        database = server.fresh_database("bench_queues")
        try:
            source = None if given.pgmq is None else given.pgmq.read_text()
            asyncio.run(main(database, source, given.quick))
        finally:
            server.drop_database("bench_queues")
