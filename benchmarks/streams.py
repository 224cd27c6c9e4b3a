"""How soon followers of runs see what happens, and how many questions that takes.

The server runs in a process of its own, with wide bounds on streams. This process follows the
runs, and sends them signals: the time runs from the answer to the signal, when it is committed,
to its event on the stream. Then all is quiet for a while, which shows what following costs then.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from pathlib import Path
from uuid import UUID

import asyncpg

from benchmarks.budgets import Figure, figure, parser, percentile, tell
from benchmarks.http_server import WIDE, Connection, HttpServer, fresh, running
from holdfast.client import Client

AT_ONCE = 100  # streams that are opened together
QUIET_SECONDS = 10.0
FLUSH_SECONDS = 11.0  # after which a session of PostgreSQL has told what it counted
PATIENCE_SECONDS = 30.0
CALLS = "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = $1"


class Followers:
    """Streams of runs, one each, and when the last event came on each."""

    def __init__(self) -> None:
        self.seen_at: dict[UUID, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._connections: list[Connection] = []
        self.arrived = asyncio.Event()

    async def follow(self, server: HttpServer, run_ids: list[UUID]) -> None:
        """Open a stream for each run."""
        for first in range(0, len(run_ids), AT_ONCE):
            some = run_ids[first : first + AT_ONCE]
            await asyncio.gather(*(self._open(server, run_id) for run_id in some))

    def close(self) -> None:
        """Leave all streams."""
        for task in self._tasks:
            task.cancel()
        for connection in self._connections:
            connection.close()

    async def _open(self, server: HttpServer, run_id: UUID) -> None:
        connection = Connection(server)
        await connection.open()
        reader = await connection.stream(f"/v1/runs/{run_id}/attach")
        self._connections.append(connection)
        self._tasks.append(asyncio.create_task(self._read(reader, run_id)))

    async def _read(self, reader: asyncio.StreamReader, run_id: UUID) -> None:
        while line := await reader.readline():
            if line.startswith(b"event: SignalReceived"):
                self.seen_at[run_id] = time.perf_counter()
                self.arrived.set()


async def latencies(
    client: Client, followers: Followers, run_ids: list[UUID], signals: int, each_second: float
) -> list[float]:
    """Send signals, and return how many milliseconds each needed to its stream."""
    committed: dict[UUID, float] = {}
    chosen = random.sample(run_ids, signals)
    for run_id in chosen:
        await client.signal(run_id, "go", 1)
        committed[run_id] = time.perf_counter()
        await asyncio.sleep(random.uniform(0.5, 1.5) / each_second)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not committed.keys() <= followers.seen_at.keys():
            followers.arrived.clear()
            await followers.arrived.wait()
    return [max(0.0, followers.seen_at[each] - committed[each]) * 1e3 for each in chosen]


async def questions(connection: asyncpg.Connection, seconds: float) -> float:
    """Return how often logs are asked for in a second."""
    before = await connection.fetchval(CALLS, "read_tails")
    await asyncio.sleep(seconds)
    return float(await connection.fetchval(CALLS, "read_tails") - before) / seconds


async def measure(url: str, server: HttpServer, runs: int, rounds: int) -> list[Figure]:
    """Follow so many runs, and return the figures."""
    followers, busy = Followers(), list[float]()
    p95, p50, quiet = list[float](), list[float](), list[float]()
    signals = min(200, runs // rounds)
    connection = await asyncpg.connect(url)
    async with Client(url) as client:
        run_ids = [(await client.start("shop/checkout", n)).run_id for n in range(runs)]
        await followers.follow(server, run_ids)
        random.shuffle(run_ids)
        await asyncio.sleep(FLUSH_SECONDS)
        used = server.cpu_seconds()
        quiet = [await questions(connection, QUIET_SECONDS)]
        idle = (server.cpu_seconds() - used) / QUIET_SECONDS * 100
        for number in range(rounds):
            some = run_ids[number * signals : (number + 1) * signals]
            counting = asyncio.create_task(questions(connection, signals / 20))
            took = await latencies(client, followers, some, signals, 20)
            busy.append(await counting)
            p50.append(percentile(took, 50))
            p95.append(percentile(took, 95))
    followers.close()
    await connection.close()
    title = f"{runs:,} followed runs"
    return [
        figure("stream-p95", f"event committed to on the stream, p95; {title}", "ms", p95, 120),
        figure("stream-p50", "the same, p50", "ms", p50),
        figure("stream-questions", "questions while 20 signals/s come", "1/s", busy, 20),
        figure("stream-quiet", "questions while nothing happens", "1/s", quiet, 10),
        Figure("stream-cpu", "processor of the server meanwhile", "%", idle),
    ]


def main() -> None:
    options = parser("streams", __doc__)
    options.add_argument("--runs", type=int, default=1_000, help="that are followed; 1,000")
    options.add_argument("--rounds", type=int, default=3, help="of which the median counts; 3")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["HOLDFAST_HOME"] = folder
        with fresh(home, "bench_streams") as (_, url), running(url, home, WIDE) as server:
            figures = asyncio.run(measure(url, server, given.runs, given.rounds))
    tell(figures, given.output)


if __name__ == "__main__":
    main()
