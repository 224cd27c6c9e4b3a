"""The DBOS worker: the benchmark's workflows on one queue. Runs in DBOS's own environment.

Chains of steps are there as synchronous and as asynchronous workflows; what waits or fans out is
asynchronous, which costs it the least memory and lets steps run at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import time
from datetime import datetime
from typing import Any

from dbos import DBOS

QUEUE = "bench"
APPLICATION_VERSION = "1"
YEAR_SECONDS = 365 * 86400


@DBOS.step()
def work(i: int) -> dict[str, Any]:
    return {"step": i, "ok": True}


@DBOS.step()
async def work_async(i: int) -> dict[str, Any]:
    return {"step": i, "ok": True}


@DBOS.step()
async def clock() -> float:
    return time.time()


@DBOS.workflow(name="many")
def many(n: int) -> int:
    for i in range(n):
        work(i)
    return n


@DBOS.workflow(name="many-async")
async def many_async(n: int) -> int:
    for i in range(n):
        await work_async(i)
    return n


@DBOS.workflow(name="keyed")
def keyed(key: int) -> int:
    work(key)
    return key


@DBOS.workflow(name="step_once")
async def step_once() -> int:
    await work_async(0)
    return 1


@DBOS.workflow(name="fan")
async def fan(n: int) -> int:
    await asyncio.gather(*(work_async(i) for i in range(n)))
    return n


@DBOS.workflow(name="gated")
async def gated(n: int) -> int:
    for i in range(n):
        await work_async(i)
    await DBOS.recv_async("go", timeout_seconds=YEAR_SECONDS)
    return n


@DBOS.workflow(name="nap")
async def nap(seconds: float) -> float:
    began = time.time()  # not in a step: its record would count as lateness
    await DBOS.sleep_async(seconds)
    return time.time() - began - seconds


@DBOS.workflow(name="punctual")
def punctual(tick: datetime, context: object) -> float:
    return time.time() - tick.timestamp()


@DBOS.workflow(name="long")
async def long(n: int) -> list[float]:
    moments = [await clock() for _ in range(n)]
    await DBOS.recv_async("go", timeout_seconds=YEAR_SECONDS)
    return [moments[0], moments[100], moments[-100], moments[-1]]


@DBOS.workflow(name="children")
async def children(n: int) -> int:
    handles = [await DBOS.enqueue_workflow_async(QUEUE, step_once) for _ in range(n)]
    return sum([await handle.get_result() for handle in handles])


@DBOS.workflow(name="crowd")
async def crowd(n: int) -> int:
    handles = [await DBOS.enqueue_workflow_async(QUEUE, gated, 0) for _ in range(n)]
    return len([await handle.get_result() for handle in handles])


@DBOS.workflow(name="crowds")
async def crowds(n: int) -> int:
    handles = [await DBOS.enqueue_workflow_async(QUEUE, crowd, n // 10) for _ in range(10)]
    return sum([await handle.get_result() for handle in handles])


def measure_inside(count: int) -> float:
    """Return the median milliseconds from start to result, past the queue."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        DBOS.start_workflow(many, 1).get_result()
        took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--poll", type=float, default=0.01)
    parser.add_argument("--one-a-key", action="store_true", help="one run of a partition at once")
    parser.add_argument("--inside", type=int, help="start so many runs in here, say the median")
    options = parser.parse_args()
    DBOS(
        config={
            "name": "bench",
            "system_database_url": options.database,
            "application_version": APPLICATION_VERSION,
            "log_level": "WARNING",
            "db_engine_kwargs": {"pool_pre_ping": False},  # saves a round trip per statement
        }
    )
    DBOS.launch()
    if options.inside:
        print(measure_inside(options.inside), flush=True)
        os._exit(0)
    DBOS.register_queue(
        QUEUE,
        worker_concurrency=options.at_once,
        partition_concurrency=1 if options.one_a_key else None,
        polling_interval_sec=options.poll,
        on_conflict="always_update",
    )
    signal.pause()


if __name__ == "__main__":
    main()
