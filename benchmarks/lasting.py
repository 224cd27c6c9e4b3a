"""R, and what waits: long runs, resuming them, a million waiting runs, idle cost, memory."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.bench import SETTLE_SECONDS, Bench
from benchmarks.engine import Measurement, WorkerSetting
from benchmarks.latency import LATENCY, idle_latencies

IDLE_SECONDS = 10.0
RESUMES = 5
MISSED_SECONDS = 3.0  # holdfast prefers the worker that has a run in memory while it is heard of


async def long_run(bench: Bench) -> list[Measurement]:
    """1,000 steps in one run; then its worker is killed, and a new one has to resume it.

    The new worker already serves when the signal is sent. An engine that recovers its runs when
    a worker starts has a head start: part of its replay happens before the clock runs.
    """
    engine, resumed, first, last = bench.engine, [], [], []
    for _ in range(bench.count(RESUMES, least=2)):
        with bench.worker(LATENCY) as worker:
            await bench.warm_up(worker)
            run_id = await engine.start("long", 1000)
            await bench.wait_until_gated(worker, 1)
            await asyncio.sleep(SETTLE_SECONDS)
        with bench.worker(LATENCY) as worker:
            await _wait_until_serving(bench)
            await asyncio.sleep(MISSED_SECONDS)
            began = time.perf_counter()
            await engine.signal(run_id)
            marks = await engine.result(run_id)
            resumed.append((time.perf_counter() - began) * 1e3)
        first.append((marks[1] - marks[0]) * 10)  # ms per step, over 100 steps
        last.append((marks[3] - marks[2]) * 1000 / 99)
    growth = statistics.median(last) / statistics.median(first)
    return [
        Measurement("R-first", "cost per step, first 100 of 1,000", "ms", statistics.median(first)),
        Measurement("R-last", "cost per step, last 100 of 1,000", "ms", statistics.median(last)),
        Measurement("R", "cost per step, last 100 to first 100", "x", growth),
        Measurement(
            "R-resume",
            "signal to completion of a run of 1,000 steps on a new worker after kill -9",
            "ms",
            statistics.median(resumed),
        ),
    ]


async def _wait_until_serving(bench: Bench) -> None:
    """Wait until the worker completes a run, then until it is idle."""
    await bench.engine.result(await bench.engine.start("many", 1))
    await asyncio.sleep(SETTLE_SECONDS)


async def million_waiting(bench: Bench) -> list[Measurement]:
    """L again, with a million runs in the tables that are due in a year."""
    count = bench.count(1_000_000)
    with bench.worker(LATENCY) as worker:
        await bench.warm_up(worker)
        empty = statistics.median(await idle_latencies(bench, bench.count(100)))
        await bench.engine.add_waiting(count)
        await asyncio.sleep(SETTLE_SECONDS)
        await idle_latencies(bench, 20)
        full = statistics.median(await idle_latencies(bench, bench.count(100)))
    return [
        Measurement("L-million", "idle latency beside 1,000,000 waiting runs, p50", "ms", full),
        Measurement("L-million-x", "the same, to that of an empty table", "x", full / empty),
    ]


async def idle_worker(bench: Bench) -> list[Measurement]:
    """What a worker costs that has nothing to do, set up as for the latency workloads."""
    with bench.worker(LATENCY) as worker:
        await bench.warm_up(worker)
        await asyncio.sleep(12.0)  # idle sessions report what they did up to ten seconds late
        cpu, ended = worker.cpu_seconds(), await bench.engine.transactions()
        began = time.perf_counter()
        await asyncio.sleep(IDLE_SECONDS)
        took = time.perf_counter() - began
        cpu, ended = worker.cpu_seconds() - cpu, await bench.engine.transactions() - ended
    # the first question above is itself counted in the second
    rate = max(0, ended - 1) / took
    return [
        Measurement("idle-cpu", "idle worker's processor", "% of a core", cpu / took * 100),
        Measurement("idle-tps", "idle worker's transactions", "transactions/s", rate),
    ]


async def memory(bench: Bench) -> list[Measurement]:
    """A worker that holds 1,000 runs which wait for a signal after one step."""
    runs = bench.count(1000)
    with bench.worker(WorkerSetting("latency", at_once=1000)) as worker:
        await bench.warm_up(worker)
        before = worker.memory_bytes()
        await bench.engine.start_many("gated", [1] * runs)
        await bench.wait_until_gated(worker, runs)
        await asyncio.sleep(1.0)
        after = worker.memory_bytes()
    return [
        Measurement("memory", "worker with 1,000 suspended runs", "MB", after / 1e6),
        Measurement(
            "memory-run", "growth by a suspended run", "kB/run", (after - before) / runs / 1e3
        ),
    ]
