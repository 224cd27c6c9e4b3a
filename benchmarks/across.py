"""A, C, X, K: work that a run gives to others, the tree of its children, and forks of its log."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.bench import SETTLE_SECONDS, Bench
from benchmarks.engine import Measurement, WorkerSetting
from benchmarks.latency import LATENCY

SIDE = WorkerSetting("latency", queue="side")
TRIPS = 10  # activities of one run, one after the other
FORKS = 20


async def activity_trip(bench: Bench) -> list[Measurement]:
    """One activity at a time, each run by another worker process, as its workflow sees it.

    From the call to the line after it: the order is committed, the run suspended, the other
    worker told, the activity claimed, run and its end recorded, the run woken and resumed.
    """
    engine, trips = bench.engine, []
    with bench.worker(LATENCY) as worker, bench.worker(SIDE):
        await bench.warm_up(worker)
        await engine.run("trip", 3 * TRIPS)
        for _ in range(bench.count(20, least=3)):
            trips += await engine.run("trip", TRIPS)
    title = "idle: activity in another process and back, p50"
    return [Measurement("A-trip", title, "ms", statistics.median(trips) * 1e3)]


async def a1000(bench: Bench) -> list[Measurement]:
    return [await _fan(bench, "A1000", "activities", 1000)]


async def a10000(bench: Bench) -> list[Measurement]:
    return [await _fan(bench, "A10000", "activities", 10_000)]


async def c1000(bench: Bench) -> list[Measurement]:
    return [await _fan(bench, "C1000", "children", 1000)]


async def c10000(bench: Bench) -> list[Measurement]:
    return [await _fan(bench, "C10000", "children", 10_000)]


async def _fan(bench: Bench, metric: str, workflow: str, count: int) -> Measurement:
    """Time one run, start to result, that orders so many at once from the same worker process."""
    engine, count_here = bench.engine, bench.count(count)
    with bench.worker(WorkerSetting()) as worker:
        await bench.warm_up(worker)
        await engine.run(workflow, 20)
        await asyncio.sleep(SETTLE_SECONDS)
        began = time.perf_counter()
        done = await engine.run(workflow, count_here)
        took = time.perf_counter() - began
    if done != count_here:
        raise RuntimeError(f"{done} of {count_here} {workflow} completed")
    what = "activities" if workflow == "activities" else "child runs of one step"
    return Measurement(metric, f"one run of {count:,} {what}, start to result", "s", took)


async def cancel_tree(bench: Bench) -> list[Measurement]:
    """Cancel a run whose 1,000 children wait, below it or in ten groups; until all have ended."""
    count = bench.count(1000)
    flat = await _cancel(bench, "crowd", count)
    deep = await _cancel(bench, "crowds", count)
    return [
        Measurement("X1000", "cancel of 1,000 waiting children, until all ended", "s", flat),
        Measurement("X1000-deep", "the same, grandchildren below ten children", "s", deep),
    ]


async def _cancel(bench: Bench, workflow: str, count: int) -> float:
    # Some engines hold a waiting run like any other: there has to be room for all of them.
    with bench.worker(WorkerSetting(at_once=count + 100)) as worker:
        await bench.warm_up(worker)
        run_id = await bench.engine.start(workflow, count)
        await bench.wait_until_gated(worker, count)
        await asyncio.sleep(SETTLE_SECONDS)
        began = time.perf_counter()
        await bench.engine.cancel_tree(run_id)
        await bench.wait_until_ended(worker)
        return time.perf_counter() - began


async def forks(bench: Bench) -> list[Measurement]:
    """Fork a waiting run with the results of its 1,000 steps; no worker runs meanwhile."""
    engine, took = bench.engine, []
    with bench.worker(LATENCY) as worker:
        await bench.warm_up(worker)
        run_id = await engine.start("long", 1000)
        await bench.wait_until_gated(worker, 1)
        await asyncio.sleep(SETTLE_SECONDS)
    for _ in range(bench.count(FORKS, least=3)):
        began = time.perf_counter()
        await engine.fork(run_id, 1000)
        took.append((time.perf_counter() - began) * 1e3)
    return [Measurement("K", "fork of a log of 1,000 steps, p50", "ms", statistics.median(took))]
