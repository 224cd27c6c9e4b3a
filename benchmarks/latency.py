"""L, S, F, T: how fast an idle worker reacts, seen by a client in another process."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.bench import Bench
from benchmarks.engine import Measurement, WorkerSetting

LATENCY = WorkerSetting("latency")
BETWEEN_SECONDS = 0.01  # lets the worker go idle; not a multiple of any engine's polling


async def idle_latencies(
    bench: Bench, count: int, *, workflow: str = "many", between: float = 0.0
) -> list[float]:
    """Start one run at a time and wait for its result; return the milliseconds of each."""
    took = []
    for n in range(count):
        if between:
            await asyncio.sleep(between + 0.0007 * (n % 10))
        began = time.perf_counter()
        await bench.engine.run(workflow, 1)
        took.append((time.perf_counter() - began) * 1e3)
    return took


async def idle_latency(bench: Bench) -> list[Measurement]:
    with bench.worker(LATENCY) as worker:
        await bench.warm_up(worker)
        took = await idle_latencies(bench, bench.count(200))
        paused = await idle_latencies(bench, bench.count(100), between=BETWEEN_SECONDS)
    measured = [
        Measurement("L", "idle: start to result, p50", "ms", statistics.median(took)),
        Measurement("L-p99", "idle: start to result, p99", "ms", percentile(took, 99)),
        Measurement(
            "L-paused", "the same after a pause of 10 ms each, p50", "ms", statistics.median(paused)
        ),
    ]
    inside = await bench.engine.inside_latency(bench.count(200))
    if inside is not None:
        title = "the same for a caller inside the worker's process, p50"
        measured.append(Measurement("L-inside", title, "ms", inside))
    return measured


async def signals(bench: Bench) -> list[Measurement]:
    engine, took = bench.engine, []
    with bench.worker(LATENCY) as worker:
        await bench.warm_up(worker)
        for _ in range(bench.count(100)):
            run_id = await engine.start("gated", 1)
            await bench.wait_until_gated(worker, 1)
            result = await engine.expect(run_id)
            await asyncio.sleep(BETWEEN_SECONDS)
            began = time.perf_counter()
            await engine.signal(run_id)
            await result
            took.append((time.perf_counter() - began) * 1e3)
    return [
        Measurement("S", "signal to completion, p50", "ms", statistics.median(took)),
        Measurement("S-p99", "signal to completion, p99", "ms", percentile(took, 99)),
    ]


async def fan_out(bench: Bench) -> list[Measurement]:
    engine, took = bench.engine, []
    with bench.worker(WorkerSetting("fan-out")):
        await engine.result(await engine.start("fan", 10))
        for _ in range(bench.count(20, least=3)):
            await asyncio.sleep(BETWEEN_SECONDS)
            began = time.perf_counter()
            await engine.result(await engine.start("fan", 100))
            took.append((time.perf_counter() - began) * 1e3)
    title = "one run of 100 parallel steps, start to result"
    return [Measurement("F", title, "ms", statistics.median(took))]


async def sleeps(bench: Bench) -> list[Measurement]:
    engine = bench.engine
    with bench.worker(LATENCY) as worker:
        await bench.warm_up(worker)
        run_ids = []
        for _ in range(bench.count(30)):
            run_ids.append(await engine.start("nap", 1.0))
            await asyncio.sleep(0.053)
        late = [await engine.result(run_id) for run_id in run_ids]
    title = "lateness of a 1 s sleep, seen by the workflow, p50"
    return [Measurement("T", title, "ms", statistics.median(late) * 1e3)]


def percentile(values: list[float], hundredth: int) -> float:
    """Return the smallest value that so many hundredths of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * hundredth // 100)]
