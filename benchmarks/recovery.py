"""How long runs stand still after kill -9, and after a deploy: `python -m benchmarks.recovery`.

**Kill.** A worker has all runs in the middle of a step when it is killed with SIGKILL; another one
is there and idle. Each run has five recorded steps before. The time runs from the kill to the end
of the run, which is recorded with the interrupted step: of the first run, of half of them, of the
last. Most of it is the silence after which a worker is called dead. Last column: runs a second,
from the first to the last.

**Deploy.** A worker has all runs suspended at a signal, after twenty recorded steps, and is stopped
in good order; a new one starts. Then all runs are sent the signal at once: each is replayed from
its log. The time runs from the start of the new process; the rate is runs replayed and ended a
second, from the first to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import asyncpg

from benchmarks.holdfast_app import app, gated, interrupted
from benchmarks.runner import CACHE
from benchmarks.server import Server, alone, serve
from benchmarks.worker import WorkerProcess
from holdfast import Client
from holdfast.client import Signal

DATABASE = "bench_recovery"
STEPS_BEFORE_KILL = 5
STEPS_BEFORE_DEPLOY = 20
PATIENCE_SECONDS = 900.0
LOOK_SECONDS = 0.05
SETTLE_SECONDS = 3.0  # after which each worker has been heard, and nothing is under way

# How many steps are recorded, and how many runs wait at the signal.
RECORDED = "select count(*) from holdfast.events where event_type = 'StepCompleted'"
AT_SIGNAL = "select count(*) from holdfast.tasks where worker is null and awaiting <> '{}'"
OPEN = "select count(*) from holdfast.tasks"
WORKERS = "select count(*) from holdfast.workers"
# Seconds from a moment to the ends of the runs: of the first, of half of them, of the last. In both
# measurements a run ends with the step or the signal that it continues with.
CONTINUED = """
select extract(epoch from min(r.completed_at))::float8 - $1::float8 as first,
    extract(epoch from percentile_disc(0.5) within group (order by r.completed_at))::float8
        - $1::float8 as half,
    extract(epoch from max(r.completed_at))::float8 - $1::float8 as last
from holdfast.runs r
"""


class Row(NamedTuple):
    """How long so many runs took to continue, in seconds; and how many did in a second."""

    kind: str
    runs: int
    first: float
    half: float
    last: float
    rate: float


async def measure_kill(url: str, runs: int) -> Row:
    connection = await asyncpg.connect(url)
    try:
        async with Client(url, app=app) as client:
            with _worker(url, runs, HANGS="1") as dies:
                await client.start_many(interrupted, [STEPS_BEFORE_KILL] * runs)
                await _until(connection, RECORDED, STEPS_BEFORE_KILL * runs, dies)
                with _worker(url, runs) as lives:
                    await _until(connection, WORKERS, 2, lives)
                    await asyncio.sleep(SETTLE_SECONDS)
                    killed = time.time()
                    dies.kill()
                    await _until(connection, OPEN, 0, lives)
        return await _row(connection, "kill", runs, killed)
    finally:
        await connection.close()


async def measure_deploy(url: str, runs: int) -> Row:
    connection = await asyncpg.connect(url)
    try:
        async with Client(url, app=app) as client:
            with _worker(url, runs) as old:
                handles = await client.start_many(gated, [STEPS_BEFORE_DEPLOY] * runs)
                await _until(connection, AT_SIGNAL, runs, old)
                old.terminate()
                old.wait()
            began = time.time()
            with _worker(url, runs) as new:
                await client.signal_many(Signal(each.run_id, "go") for each in handles)
                await _until(connection, OPEN, 0, new)
        return await _row(connection, "deploy", runs, began)
    finally:
        await connection.close()


def _worker(url: str, concurrency: int, **environment: str) -> WorkerProcess:
    command = [sys.executable, "-m", "holdfast", "worker", "benchmarks.holdfast_app:app"]
    command += ["--database", url, "--concurrency", str(concurrency)]
    return WorkerProcess(command, CACHE / "recovery.log", environment)


async def _until(
    connection: asyncpg.Connection[Any], query: str, number: int, worker: WorkerProcess
) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await connection.fetchval(query) != number:
            worker.check()
            await asyncio.sleep(LOOK_SECONDS)


async def _row(connection: asyncpg.Connection[Any], kind: str, runs: int, since: float) -> Row:
    found = await connection.fetchrow(CONTINUED, since)
    assert found is not None, "an aggregate has one row"
    first, half, last = found
    return Row(kind, runs, first, half, last, runs / max(last - first, LOOK_SECONDS))


def measure(server: Server, counts: Sequence[int]) -> list[Row]:
    """Measure each in a database of its own."""
    rows: list[Row] = []
    for runs in counts:
        for work in (measure_kill, measure_deploy):
            url = server.fresh_database(DATABASE)
            migrate = [sys.executable, "-m", "holdfast", "migrate", "--database", url]
            subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL)
            rows.append(asyncio.run(work(url, runs)))
            print(f"{rows[-1].kind} of {runs:,} runs measured", file=sys.stderr, flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    heads = ("", "runs", "first, s", "half, s", "last, s", "runs/s")
    lines = ["".join(f"{head:>10}" for head in heads)]
    for row in rows:
        shown = (f"{row.runs:,}", *(f"{each:.2f}" for each in row[2:5]), f"{row.rate:,.0f}")
        lines.append("".join(f"{each:>10}" for each in (row.kind, *shown)))
    return "\n".join(lines)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--database", metavar="URL", help="a server, instead of the embedded one")
    parser.add_argument("--runs", type=_counts, default=(1_000, 10_000), metavar="N,N")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    with alone(CACHE), serve(options.database, CACHE / "home") as server:
        try:
            rows = measure(server, options.runs)
        finally:
            server.drop_database(DATABASE)
    print(json.dumps([each._asdict() for each in rows]) if options.json else table(rows))


if __name__ == "__main__":
    main()
