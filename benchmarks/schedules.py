"""SCH, SCHL: how late schedules fire, many at one moment and one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from datetime import UTC, datetime, timedelta

from benchmarks.bench import Bench, wait_until
from benchmarks.engine import Measurement, WorkerSetting
from benchmarks.latency import LATENCY, percentile

MANY = 10_000
IDLE_TICKS = 20
PREPARING_SECONDS = 3  # for the creation of schedules, and a little more for each thousand


async def one_worker(bench: Bench) -> list[Measurement]:
    return await _at_one_moment(bench, "SCH", workers=1)


async def four_workers(bench: Bench) -> list[Measurement]:
    return await _at_one_moment(bench, "SCH4", workers=4)


async def idle_lateness(bench: Bench) -> list[Measurement]:
    """A schedule of every second starts a workflow that looks at the clock; nothing else runs."""
    engine = bench.engine
    ticks = bench.count(IDLE_TICKS, least=5)
    with bench.worker(LATENCY) as worker:
        await bench.warm_up(worker)
        await engine.create_schedules(1, "* * * * * *", "punctual")

        async def enough() -> bool:
            return len(await engine.lateness()) > ticks

        await wait_until(enough, worker, pause_seconds=0.5)
        late = await engine.outputs("punctual")
        fired = await engine.lateness()
    return [
        Measurement("SCHL", "idle: tick to firing, p50", "ms", statistics.median(fired) * 1e3),
        Measurement(
            "SCHL-run", "idle: tick to workflow code, p50", "ms", statistics.median(late) * 1e3
        ),
    ]


async def _at_one_moment(bench: Bench, metric: str, *, workers: int) -> list[Measurement]:
    """Fire 10,000 schedules that are due at the same moment, each once."""
    engine, count = bench.engine, bench.count(MANY)
    with contextlib.ExitStack() as stack:
        [first, *_] = [
            stack.enter_context(bench.worker(WorkerSetting("throughput"))) for _ in range(workers)
        ]
        await bench.warm_up(first)
        seconds = PREPARING_SECONDS + 2 * count / 1000
        moment = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
        cron = f"{moment.second} {moment.minute} * * * *"
        await engine.create_schedules(count, cron, "many")
        if time.time() > moment.timestamp() - 1:
            raise RuntimeError(f"{count} schedules were not created within {seconds} s")
        await asyncio.sleep(moment.timestamp() - time.time())

        async def fired() -> bool:
            return len(await engine.lateness()) >= count

        await wait_until(fired, first, pause_seconds=0.5)
        late = await engine.lateness()
        if len(late) != count:
            raise RuntimeError(f"{len(late)} ticks of {count} schedules")
    title = f"{MANY:,} schedules due at one moment, {workers} worker{'s' * (workers > 1)}"
    return [
        Measurement(metric, f"{title}: tick to firing, p99", "ms", percentile(late, 99) * 1e3),
        Measurement(f"{metric}-p50", "the same, p50", "ms", statistics.median(late) * 1e3),
    ]
