"""D: ended runs deleted and archived; W5 beside a worker that deletes a million of them."""

from __future__ import annotations

import os
import tempfile
import time

from benchmarks.bench import Bench
from benchmarks.engine import Measurement, WorkerSetting
from benchmarks.throughput import drain

SWEEPER_INTERVAL = "HOLDFAST_SWEEPER_INTERVAL"
OLD = 100_000
BESIDE = 1_000_000
STEPS = 3  # of an old run: its log has 5 events


async def delete(bench: Bench) -> list[Measurement]:
    """Delete runs whose retention is over, with nothing else under way."""
    count = bench.count(OLD)
    await bench.engine.add_ended(count, STEPS)
    began = time.perf_counter()
    await bench.engine.sweep()
    took = time.perf_counter() - began
    return [Measurement("D", "ended runs of 5 events deleted", "runs/s", count / took, higher=True)]


async def archive(bench: Bench) -> list[Measurement]:
    """Write such runs to a folder, and delete them then."""
    count = bench.count(OLD)
    await bench.engine.add_ended(count, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        await bench.engine.sweep(f"file://{folder}")
        took = time.perf_counter() - began
    title = "ended runs of 5 events archived to a folder and deleted"
    return [Measurement("D-archive", title, "runs/s", count / took, higher=True)]


async def beside(bench: Bench) -> list[Measurement]:
    """W5 while the worker that drives the runs also deletes old ones, to W5 while they are kept."""
    runs = bench.count(5000)
    await bench.engine.add_ended(bench.count(BESIDE), STEPS)
    os.environ[SWEEPER_INTERVAL] = "off"  # the workers inherit it
    alone = await drain(bench, WorkerSetting(), "many", [5] * runs)
    os.environ[SWEEPER_INTERVAL] = "1s"
    before: list[int] = []

    async def count() -> None:
        before.append(await bench.engine.stored_runs())

    swept = await drain(bench, WorkerSetting(), "many", [5] * runs, ready=count)
    deleted = before[0] - await bench.engine.stored_runs()
    if not 0 < deleted < bench.count(BESIDE):
        raise RuntimeError(f"{deleted} old runs were deleted beside W5: it shows nothing")
    title = "W5 while 1,000,000 old runs are deleted, time to that while they are kept"
    rate = "old runs deleted meanwhile"
    return [
        Measurement("D-W5", title, "x", swept / alone),
        Measurement("D-W5-runs", rate, "runs/s", deleted / swept, higher=True),
    ]
