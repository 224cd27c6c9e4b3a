"""FL: flows, which are graphs of steps, and how long the database takes from step to step."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.bench import SETTLE_SECONDS, Bench
from benchmarks.engine import Measurement, WorkerSetting
from benchmarks.flow_shapes import CHAIN_STEPS, SIDES
from benchmarks.latency import BETWEEN_SECONDS, idle_latencies
from benchmarks.throughput import drain


async def one_step(bench: Bench) -> list[Measurement]:
    runs = bench.count(4000)
    took = await drain(bench, WorkerSetting(flow="one"), "one", [0] * runs)
    return [Measurement("FL1", "4,000 flows of 1 step", "runs/s", runs / took, higher=True)]


async def chains(bench: Bench) -> list[Measurement]:
    """W50 is the same chain as code: 100 runs of a workflow that runs 50 steps in a row."""
    runs = bench.count(100)
    setting, few = WorkerSetting(flow="chain"), [0] * 10
    took = await drain(bench, setting, "chain", [0] * runs, warm_up=few)
    title = f"100 flows, chains of {CHAIN_STEPS} steps (as code: W50)"
    return [Measurement("FLC", title, "steps/s", runs * CHAIN_STEPS / took, higher=True)]


async def map_1000(bench: Bench) -> list[Measurement]:
    return [await _map(bench, "FLM1000", 1000)]


async def map_10000(bench: Bench) -> list[Measurement]:
    return [await _map(bench, "FLM10000", 10_000)]


async def map_100000(bench: Bench) -> list[Measurement]:
    return [await _map(bench, "FLM100000", 100_000)]


async def _map(bench: Bench, metric: str, elements: int) -> Measurement:
    """Time one run, start to result; the client reads the list of all results."""
    engine, count = bench.engine, bench.count(elements)
    with bench.worker(WorkerSetting(flow="wide")) as worker:
        await bench.warm_up(worker, "wide")
        await engine.run("wide", 20)
        await asyncio.sleep(SETTLE_SECONDS)
        began = time.perf_counter()
        output = await engine.run("wide", count)
        took = time.perf_counter() - began
    if (done := len(output["work"])) != count:
        raise RuntimeError(f"{done} of {count} elements are in the result")
    title = f"one flow with a map over {elements:,} elements, start to result"
    return Measurement(metric, title, "s", took)


async def diamonds(bench: Bench) -> list[Measurement]:
    engine, took = bench.engine, []
    with bench.worker(WorkerSetting("latency", flow="diamond")) as worker:
        await bench.warm_up(worker, "diamond", [0] * 5)
        for _ in range(bench.count(20, least=3)):
            await asyncio.sleep(BETWEEN_SECONDS)
            began = time.perf_counter()
            await engine.run("diamond", 0)
            took.append((time.perf_counter() - began) * 1e3)
    title = f"idle: flow with {SIDES} parallel steps, start to result, p50"
    return [Measurement("FLD", title, "ms", statistics.median(took))]


async def idle_flow(bench: Bench) -> list[Measurement]:
    """As L, of a flow."""
    with bench.worker(WorkerSetting("latency", flow="one")) as worker:
        await bench.warm_up(worker, "one")
        took = await idle_latencies(bench, bench.count(200), workflow="one")
    title = "idle: flow of 1 step, start to result, p50"
    return [Measurement("FLI", title, "ms", statistics.median(took))]
