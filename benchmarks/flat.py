"""If what many workers cost stays the same: `python -m benchmarks.many_workers --minutes 60`.

A driver starts runs of one step at a steady rate, beside worker processes that have little to do,
and measures the same in twelve windows: statements of the database a second, claims a run,
processor time of the workers and of the server a run, memory of the workers, and how long a start
took (the call), and the run (from its start to its end). Nothing is deleted, so the tables grow all
the time. The last row of the table is the last third of the windows against the first third.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import asyncpg

from benchmarks.counting import Counts, count_now
from benchmarks.holdfast_app import app, many
from benchmarks.latency import percentile
from benchmarks.runner import CACHE
from benchmarks.server import Server
from benchmarks.worker import WorkerProcess, cpu_seconds, several
from holdfast import Client

WINDOWS = 12
WARM_UP_SECONDS = 30.0  # at most, before the first window
PATIENCE_SECONDS = 120

# Milliseconds from start to end, of the runs that were started between two moments.
TOOK = """
select array_agg((extract(epoch from completed_at - created_at) * 1000)::float8)
from holdfast.runs where created_at >= $1 and created_at < $2 and completed_at is not null
"""


class Moment(NamedTuple):
    """What was counted until then."""

    counts: Counts
    runs: int
    worker_cpu: float
    server_cpu: float
    at: Any  # by the clock of the database


class Window(NamedTuple):
    """What workers and runs cost in one part of the time."""

    minute: float  # at its end
    rate: float  # runs a second
    statements: float  # a second, of all
    claims: float  # a run
    commits: float  # a run
    worker_cpu: float  # ms a run
    server_cpu: float  # ms a run
    memory: float  # MB, of all workers, at its end
    start: float  # ms, p50
    start_99: float
    took: float  # ms from start to end, p50
    took_99: float


class Load:
    """Starts runs at a steady rate, however long each start takes."""

    def __init__(self, client: Client, rate: float) -> None:
        self._client, self._rate = client, rate
        self.runs = 0
        self.latencies: list[float] = []

    async def go(self) -> None:
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._start())
                self.runs += 1
                await asyncio.sleep(began + self.runs / self._rate - time.monotonic())

    async def _start(self) -> None:
        began = time.perf_counter()
        await self._client.start(many, 1)
        self.latencies.append((time.perf_counter() - began) * 1e3)


async def measure(
    server: Server, url: str, processes: int, minutes: float, rate: float
) -> list[Window]:
    command = [sys.executable, "-m", "holdfast", "worker", "benchmarks.holdfast_app:app"]
    command += ["--database", url]
    postmaster = await asyncio.to_thread(server.process_id)
    connection = await asyncpg.connect(url)
    try:
        with WorkerProcess(several(command, processes), CACHE / "flat.log") as workers:
            async with Client(url, app=app) as client, asyncio.TaskGroup() as group:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while len(await client.workers.list()) < processes:
                        workers.check()
                        await asyncio.sleep(0.1)
                load = Load(client, rate)
                driving = group.create_task(load.go())
                windows = await _windows(connection, workers, load, postmaster, minutes * 60)
                driving.cancel()
    finally:
        await connection.close()
    return windows


async def _windows(
    connection: asyncpg.Connection[Any],
    workers: WorkerProcess,
    load: Load,
    postmaster: int,
    seconds: float,
) -> list[Window]:
    length = seconds / WINDOWS

    async def look() -> Moment:
        workers.check()
        return Moment(
            await count_now(connection),
            load.runs,
            workers.cpu_seconds(),
            cpu_seconds(process=postmaster) if postmaster else 0.0,
            await connection.fetchval("select now()"),
        )

    await asyncio.sleep(min(WARM_UP_SECONDS, length))
    moments, starts, memory = [await look()], list[list[float]](), list[float]()
    began = time.monotonic()
    for number in range(1, WINDOWS + 1):
        load.latencies = []
        await asyncio.sleep(began + number * length - time.monotonic())
        starts.append(load.latencies)
        memory.append(workers.memory_bytes() / 1e6)
        moments.append(await look())
        print(f"{number} of {WINDOWS} windows measured", file=sys.stderr, flush=True)
    # Read last: to read so many runs costs something.
    took = [
        await connection.fetchval(TOOK, before.at, after.at, timeout=PATIENCE_SECONDS)
        for before, after in pairwise(moments)
    ]
    return [
        _window(moments[n], moments[n + 1], (n + 1) * length / 60, memory[n], starts[n], took[n])
        for n in range(WINDOWS)
    ]


def _window(
    before: Moment,
    after: Moment,
    minute: float,
    memory: float,
    starts: list[float],
    took: list[float],
) -> Window:
    counted, runs = after.counts.since(before.counts), after.runs - before.runs
    return Window(
        minute,
        runs / counted.seconds,
        counted.statements / counted.seconds,
        counted.claims / runs,
        counted.commits / runs,
        (after.worker_cpu - before.worker_cpu) / runs * 1e3,
        (after.server_cpu - before.server_cpu) / runs * 1e3,
        memory,
        percentile(starts, 50),
        percentile(starts, 99),
        percentile(took, 50),
        percentile(took, 99),
    )


def growth(windows: Sequence[Window]) -> Window:
    """Return the mean of the last third of the windows, as a share of that of the first third."""
    third = len(windows) // 3
    first, last = windows[:third], windows[-third:]

    def share(name: str) -> float:
        begin = statistics.fmean(getattr(each, name) for each in first)
        return statistics.fmean(getattr(each, name) for each in last) / begin if begin else 1.0

    return Window(*map(share, Window._fields))


def table(windows: Sequence[Window]) -> str:
    """Return the windows as a table of Markdown."""
    heads = (
        *("until minute", "runs/s", "statements/s", "claims/run", "commits/run"),
        *("worker ms/run", "server ms/run", "workers MB"),
        *("start p50", "p99, ms", "start to end p50", "p99, ms"),
    )
    lines = [f"| {' | '.join(heads)} |", f"|{'---:|' * len(heads)}"]
    digits = (0 if windows[-1].minute >= WINDOWS else 2, 1, 1, 2, 2, 2, 2, 0, 2, 1, 1, 1)
    for each in windows:
        shown = (f"{value:,.{places}f}" for value, places in zip(each, digits, strict=True))
        lines.append(f"| {' | '.join(shown)} |")
    grown = (f"{value:.2f}" for value in growth(windows)[1:])
    lines.append(f"| last third to first | {' | '.join(grown)} |")
    return "\n".join(lines)
