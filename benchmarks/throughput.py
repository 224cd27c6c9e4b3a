"""W: many runs at once; E: how fast runs are accepted."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.bench import WARM_UP, Bench
from benchmarks.engine import Measurement, WorkerSetting

ALL_SERVE_SECONDS = 5.0  # until each of several processes has started, and is warm
BATCH = 1000  # runs per call where an engine starts many at once


async def drain(
    bench: Bench,
    setting: WorkerSetting,
    workflow: str,
    arguments: Sequence[float],
    *,
    warm_up: Sequence[float] = WARM_UP,
    ready: Callable[[], Awaitable[None]] | None = None,
) -> float:
    """Queue up runs before a frozen worker and return how long it takes to end them all.

    The worker stands still meanwhile, so the time is that of the work alone, and it starts
    warm, so none of it is the process's start. `ready` is called before it is let go.
    """
    engine, runs = bench.engine, len(arguments)
    with bench.worker(setting) as worker:
        began = time.monotonic()
        await bench.warm_up(worker, workflow, warm_up)
        while setting.processes > 1 and time.monotonic() < began + ALL_SERVE_SECONDS:
            await bench.warm_up(worker, workflow, warm_up)
        before = await engine.completed()
        worker.freeze()
        for first in range(0, runs, BATCH):
            await engine.start_many(workflow, arguments[first : first + BATCH])
        if ready is not None:
            await ready()
        began = time.perf_counter()
        worker.thaw()
        await bench.wait_until_ended(worker)
        took = time.perf_counter() - began
        if (done := await engine.completed() - before) != runs:
            raise RuntimeError(f"{done} of {runs} runs completed")
    return took


async def w1(bench: Bench, processes: int = 1, runs: int = 2000) -> list[Measurement]:
    count = bench.count(runs)
    took = await drain(bench, WorkerSetting(processes=processes), "many", [1] * count)
    metric, title = _of_processes("W1", f"{runs:,} runs of 1 step", processes)
    return [Measurement(metric, title, "runs/s", count / took, higher=True)]


async def w1_two(bench: Bench) -> list[Measurement]:
    return await w1(bench, 2)


async def w1_ten(bench: Bench) -> list[Measurement]:
    runs = bench.count(2000)
    took = await drain(bench, WorkerSetting(at_once=10), "many", [1] * runs)
    title = "2,000 runs of 1 step, 10 at once"
    return [Measurement("W1-10", title, "runs/s", runs / took, higher=True)]


async def w5(bench: Bench) -> list[Measurement]:
    runs = bench.count(1000)
    took = await drain(bench, WorkerSetting(), "many", [5] * runs)
    return [Measurement("W5", "1,000 runs of 5 steps", "steps/s", runs * 5 / took, higher=True)]


async def w50(bench: Bench, processes: int = 1) -> list[Measurement]:
    runs = bench.count(100)
    took = await drain(bench, WorkerSetting(processes=processes), "many", [50] * runs)
    metric, title = _of_processes("W50", "100 runs of 50 steps", processes)
    return [Measurement(metric, title, "steps/s", runs * 50 / took, higher=True)]


async def w50_two(bench: Bench) -> list[Measurement]:
    return await w50(bench, 2)


def _of_processes(metric: str, title: str, processes: int) -> tuple[str, str]:
    if processes == 1:
        return metric, title
    return f"{metric}-p{processes}", f"{title}, {processes} worker processes"


async def starts(bench: Bench) -> list[Measurement]:
    """E: no worker runs, so this is the price of a durable start alone."""
    engine, runs = bench.engine, bench.count(2000)
    await engine.start_many("many", [1] * 100)
    for _ in range(100):
        await engine.start("many", 1)
    began = time.perf_counter()
    for _ in range(runs):
        await engine.start("many", 1)
    single = time.perf_counter() - began
    many = runs * 5
    began = time.perf_counter()
    for _ in range(0, many, BATCH):
        await engine.start_many("many", [1] * BATCH)
    batched = time.perf_counter() - began
    return [
        Measurement("E", "starts, one after another", "runs/s", runs / single, higher=True),
        Measurement(
            "E-batch",
            "starts, 1,000 in a call",
            "runs/s",
            -(-many // BATCH) * BATCH / batched,
            higher=True,
        ),
    ]
