"""One side of `benchmarks.quick`: measures the holdfast that PYTHONPATH names, and prints JSON.

It uses only what each release has: `Client` with the app, starts, signals, `holdfast worker`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.bench import SETTLE_SECONDS
from benchmarks.holdfast_app import app, gated, many
from benchmarks.latency import BETWEEN_SECONDS
from benchmarks.throughput import BATCH
from benchmarks.worker import WorkerProcess, cpu_seconds
from holdfast import Client

HOLDFAST = [sys.executable, "-m", "holdfast"]
APP = "benchmarks.holdfast_app:app"
# What each drains: runs, and the steps of each.
DRAINED = {"W1": (2000, 1), "W5": (1000, 5), "W50": (200, 50)}
STARTED, BATCHES, LOOKS = 400, 4, 40
PATIENCE_SECONDS = 60


class Side:
    """A worker, a client and a connection to look at the tables; `figures` are µs, by name."""

    def __init__(self, client: Client, connection: asyncpg.Connection, log: Path, server: int):
        self._client = client
        self._connection = connection
        self._server = server
        self._log = log
        self.figures: dict[str, float] = {}

    async def starts(self) -> None:
        """Measure starts while no worker runs, then end what was started."""
        await self._client.start_many(many, [1] * BATCH)  # prepares its statements
        for _ in range(100):
            await self._client.start(many, 1)
        gc.collect()
        gc.freeze()  # a search through all modules comes once, and in any of the figures
        with self._measured("E", STARTED, client=True, server=True):
            for _ in range(STARTED):
                await self._client.start(many, 1)
        with self._measured("E-batch", BATCHES * BATCH, client=True, server=True):
            for _ in range(BATCHES):
                await self._client.start_many(many, [1] * BATCH)

    async def drain(self, worker: WorkerProcess) -> None:
        """Measure how a worker that stood still ends what waits for it."""
        await self._client.start_many(many, [5] * 50)
        await self._until("not exists (select from holdfast.runs where status = 'running')")
        for name, (runs, steps) in DRAINED.items():
            worker.freeze()
            for first in range(0, runs, BATCH):
                await self._client.start_many(many, [steps] * min(BATCH, runs - first))
            await asyncio.sleep(SETTLE_SECONDS)
            with self._measured(name, runs * steps, worker=worker, server=True):
                worker.thaw()
                await self._until("not exists (select from holdfast.runs where status = 'running')")

    async def react(self) -> None:
        """Measure how an idle worker reacts: the medians."""
        took: list[float] = []
        for _ in range(LOOKS * 2):
            began = time.perf_counter()
            await self._client.run(many, 1)
            took.append(time.perf_counter() - began)
        self.figures["L"] = statistics.median(took) * 1e6
        took.clear()
        for _ in range(LOOKS):
            run = await self._client.start(gated, 1)
            await self._until(
                "exists (select from holdfast.tasks where worker is null and 'go' = any (awaiting))"
            )
            result = asyncio.create_task(run.result())
            await asyncio.sleep(BETWEEN_SECONDS)
            began = time.perf_counter()
            await run.signal("go", {})
            await result
            took.append(time.perf_counter() - began)
        self.figures["S"] = statistics.median(took) * 1e6

    def _measured(self, name: str, count: int, **of: Any) -> _Measured:
        return _Measured(self, name, count, self._server, **of)

    async def _until(self, condition: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await self._connection.fetchval(f"select {condition}"):
                await asyncio.sleep(0.005)


class _Measured:
    """Adds the wall time of a block for each of `count`, and whose processor time is asked for."""

    def __init__(
        self,
        side: Side,
        name: str,
        count: int,
        server_pid: int,
        *,
        worker: WorkerProcess | None = None,
        client: bool = False,
        server: bool = False,
    ) -> None:
        self._side = side
        self._name = name
        self._count = count
        self._sources = {"": time.perf_counter}
        if worker is not None:
            self._sources[" worker"] = worker.cpu_seconds
        if client:
            self._sources[" client"] = time.process_time
        if server and server_pid:
            self._sources[" server"] = lambda: cpu_seconds(process=server_pid)

    def __enter__(self) -> None:
        self._before = {name: read() for name, read in self._sources.items()}

    def __exit__(self, *exc: object) -> None:
        for name, read in self._sources.items():
            used = read() - self._before[name]
            self._side.figures[self._name + name] = used / self._count * 1e6


async def measure(url: str, log: Path, server: int) -> dict[str, float]:
    """Return the µs of each figure, of the holdfast that is imported."""
    connection = await asyncpg.connect(url)
    try:
        async with Client(url, app=app) as client:
            side = Side(client, connection, log, server)
            await side.starts()
            with WorkerProcess([*HOLDFAST, "worker", APP, "--database", url], log) as worker:
                await side.drain(worker)
                await side.react()
    finally:
        await connection.close()
    return side.figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--server", type=int, default=0, help="the process id of the server")
    o = parser.parse_args()
    migrate = [*HOLDFAST, "migrate", "--database", o.database]
    subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL)
    print(json.dumps(asyncio.run(measure(o.database, o.log, o.server))))


if __name__ == "__main__":
    main()
