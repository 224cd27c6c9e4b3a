"""LK, LB, LF: what limits cost, and what fairness gives."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.bench import SETTLE_SECONDS, Bench
from benchmarks.engine import Measurement, WorkerSetting
from benchmarks.latency import LATENCY, idle_latencies, percentile
from benchmarks.throughput import BATCH, drain

KEYS = 10_000
BLOCKED = 1_000_000
CROWD = 100_000
WARM_UP = tuple(range(1, 51))  # keys, each of another group
SMALL = 1  # the key of a tenant with one run at a time
LARGE = 2


async def many_keys(bench: Bench) -> list[Measurement]:
    """W1 with a run for each key, without a limit and with one for each key."""
    keys = range(1, 1 + bench.count(KEYS))
    alone = await drain(bench, WorkerSetting(), "keyed", keys, warm_up=WARM_UP)
    await bench.engine.limit_keys("keyed")
    limited = await drain(bench, WorkerSetting(), "keyed", keys, warm_up=WARM_UP)
    title = "10,000 runs of 1 step, a limit for each of 10,000 keys"
    return [
        Measurement("LK", title, "runs/s", len(keys) / limited, higher=True),
        Measurement("LK-x", "the same, time to that without a limit", "x", limited / alone),
    ]


async def beside_a_blocked_key(bench: Bench) -> list[Measurement]:
    """L under a limit for each key, while a million runs wait whose key allows no more."""
    await bench.engine.limit_keys("keyed")
    with bench.worker(LATENCY) as worker:
        await bench.warm_up(worker, "keyed", WARM_UP)
        alone = statistics.median(await idle_latencies(bench, bench.count(100), workflow="keyed"))
        await bench.engine.start("keyed", 0)  # it holds the key 0
        await bench.wait_until_gated(worker, 1)
        await bench.engine.add_blocked(bench.count(BLOCKED))
        await asyncio.sleep(SETTLE_SECONDS)
        await idle_latencies(bench, 20, workflow="keyed")
        beside = statistics.median(await idle_latencies(bench, bench.count(100), workflow="keyed"))
    title = "start to result beside 1,000,000 runs of a blocked key, p50"
    return [
        Measurement("LB", title, "ms", beside),
        Measurement("LB-x", "the same, to that without them", "x", beside / alone),
    ]


async def small_tenant(bench: Bench) -> list[Measurement]:
    """How long a tenant with one run waits while another has 100,000, if they take turns."""
    engine, took = bench.engine, list[float]()
    await engine.share_fairly()
    with bench.worker(WorkerSetting()) as worker:
        await bench.warm_up(worker, "keyed", WARM_UP)
        worker.freeze()
        crowd = bench.count(CROWD, least=5000)
        for first in range(0, crowd, BATCH):
            await engine.start_many("keyed", [LARGE] * min(BATCH, crowd - first))
        worker.thaw()
        for _ in range(20):
            began = time.perf_counter()
            await engine.run("keyed", SMALL)
            took.append((time.perf_counter() - began) * 1e3)
        if not await engine.unfinished():
            raise RuntimeError("the large tenant's runs have ended: there were too few")
    title = "start to result of one tenant while another has 100,000 runs, p50"
    return [
        Measurement("LF", title, "ms", statistics.median(took)),
        Measurement("LF-p95", "the same, p95", "ms", percentile(took, 95)),
    ]
