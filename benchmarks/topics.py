"""TP: events published, to subscriptions of workflows, and beside runs that wait for others."""

from __future__ import annotations

import statistics
import time

from benchmarks.bench import Bench
from benchmarks.engine import Measurement

EVENTS = 300
WAITING = 10_000


async def publish(bench: Bench) -> list[Measurement]:
    """Publish one after the other, to 1, 10 and 100 subscriptions that each start a run."""
    engine, events = bench.engine, bench.count(EVENTS)
    found: list[Measurement] = []
    subscribed = 0
    for targets in (1, 10, 100):
        await engine.subscribe("bench.#", [f"target-{n}" for n in range(subscribed, targets)])
        subscribed = targets
        took = await _publish(bench, "bench.event", max(10, events // targets))
        title = f"event to {targets} workflow(s), p50"
        found.append(Measurement(f"TP{targets}", title, "ms", took * 1e3))
    return found


async def beside_waiting(bench: Bench) -> list[Measurement]:
    """Publish what no run waits for, alone and beside 10,000 runs with other conditions."""
    engine, events = bench.engine, bench.count(EVENTS)
    await engine.add_listening(1)
    alone = await _publish(bench, "bench.7.paid", events)
    await engine.add_listening(bench.count(WAITING))
    beside = await _publish(bench, "bench.7.paid", events)
    title = f"event beside {WAITING:,} runs that wait for others, p50"
    return [
        Measurement("TPW", title, "ms", beside * 1e3),
        Measurement("TPW-x", "the same, to that beside one such run", "x", beside / alone),
    ]


async def _publish(bench: Bench, topic: str, events: int) -> float:
    """Return the median of the seconds that an event takes."""
    took: list[float] = []
    for _ in range(events + 10):
        began = time.perf_counter()
        await bench.engine.publish(topic, {"order": -1, "customer": "ann", "cents": 4200})
        took.append(time.perf_counter() - began)
    return statistics.median(took[10:])
