"""Z: a run that is sent signals all the while, beside the same run without any."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncGenerator

from benchmarks.bench import Bench
from benchmarks.engine import Measurement, WorkerSetting
from benchmarks.latency import idle_latencies

STEPS = 5000
SIGNALS_A_SECOND = 100
NEIGHBOUR_SECONDS = 0.05  # between the runs that are started beside it


async def signal_storm(bench: Bench) -> list[Measurement]:
    """Run 5,000 steps in a row twice, with short runs beside them; signal the second run."""
    took, beside = dict[bool, float](), dict[bool, float]()
    with bench.worker(WorkerSetting("latency")) as worker:
        await bench.warm_up(worker)
        for stormy in (False, True):
            took[stormy], beside[stormy] = await _run(bench, stormy=stormy)
    title = f"{STEPS:,} steps in a row, sent {SIGNALS_A_SECOND} signals/s"
    return [
        Measurement("Z", title, "steps/s", bench.count(STEPS) / took[True], higher=True),
        Measurement("Z-x", "the same, to without signals", "x", took[False] / took[True], True),
        Measurement("Z-beside", "start to result of a run beside it, p50", "ms", beside[True]),
        Measurement(
            "Z-beside-x", "the same, to without signals", "x", beside[True] / beside[False]
        ),
    ]


async def _run(bench: Bench, *, stormy: bool) -> tuple[float, float]:
    """Return the seconds of the run, and the median milliseconds of those beside it."""
    began = time.perf_counter()
    run_id = await bench.engine.start("many", bench.count(STEPS))
    async with _beside(_storm(bench, run_id) if stormy else None), _neighbours(bench) as latencies:
        await bench.engine.result(run_id)
        took = time.perf_counter() - began
    return took, statistics.median(latencies)


async def _storm(bench: Bench, run_id: str) -> None:
    began, sent = time.perf_counter(), 0
    while True:
        while sent <= (time.perf_counter() - began) * SIGNALS_A_SECOND:
            with contextlib.suppress(Exception):  # it may have ended just now
                await bench.engine.signal(run_id)
            sent += 1
        await asyncio.sleep(0.5 / SIGNALS_A_SECOND)


@contextlib.asynccontextmanager
async def _neighbours(bench: Bench) -> AsyncGenerator[list[float]]:
    latencies = await idle_latencies(bench, 1)

    async def go_on() -> None:
        while True:
            latencies.extend(await idle_latencies(bench, 1, between=NEIGHBOUR_SECONDS))

    async with _beside(go_on()):
        yield latencies


@contextlib.asynccontextmanager
async def _beside(work: object) -> AsyncGenerator[None]:
    """Do something while the block lasts."""
    task = asyncio.ensure_future(work) if asyncio.iscoroutine(work) else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
