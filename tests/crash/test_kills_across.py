"""Processes killed while work is on its way between them: activities on queues of their own,
nested children, approvals, updates and signals. Every run ends, its parent is told once, every
result is used once, every effect outside is explained by the logs, and nothing is left queued.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.database.embedded import EmbeddedServer
from tests.crash.across import Errand
from tests.crash.fleet import (
    Fleet,
    kill_at_every_point,
    send_signals,
    start_patiently,
    start_slow,
    until_all_end,
)
from tests.crash.leases import stop_at_work
from tests.crash.ledger import check_nothing_is_queued, check_runs
from tests.crash.people import decide_all, update_all
from tests.crash.worker import DEFAULT
from tests.valkey import needs_valkey, valkey

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

BLOWS = 10
OFFICES_PER_BLOW = 4
RUNS_PER_OFFICE = 4  # itself, its branch, two leaves
SIDE = "side"
CREWS = ((DEFAULT,), (SIDE,), (DEFAULT, SIDE), (SIDE,))


async def test_work_across_workers_killed_at_random_is_neither_lost_nor_repeated(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Traps 8, 18, 22, 23; S5, S7, S12, S15, T3, T4: workers of each queue, the postmaster once."""
    await strike(fleet, server, ledger)


@needs_valkey
async def test_nor_is_it_with_a_redis_that_is_killed_flushed_and_stopped(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """S13. At each blow against a worker, there is one against Redis."""
    with valkey() as redis:
        fleet.redis = redis.url
        blows = cycle([redis.flush, redis.kill, redis.start, redis.pause, redis.resume])
        await strike(fleet, server, ledger, redis.url, lambda: next(blows)())
        redis.resume()


async def strike(
    fleet: Fleet,
    server: EmbeddedServer,
    ledger: Path,
    redis_url: str | None = None,
    strike_redis: Callable[[], None] = lambda: None,
) -> None:
    """Kill workers at random, and check what became of their work."""
    choose = random.Random(11)
    for queues in CREWS:
        fleet.start(*queues)
    busy: list[RunHandle[object]] = []
    async with Client(server.url, redis=redis_url) as client, asyncio.TaskGroup() as outside:
        people = outside.create_task(decide_all(client))
        handles: list[RunHandle[object]] = []
        for blow in range(BLOWS):
            errands = [Errand(number=n, queue=SIDE) for n in range(OFFICES_PER_BLOW)]
            wave = await start_patiently(client, "office", errands)
            handles += wave
            outside.create_task(send_signals(wave, 2))
            outside.create_task(update_all(wave))
            await asyncio.sleep(choose.uniform(0.05, 0.4))
            await asyncio.to_thread(strike_redis)
            if blow == BLOWS // 2:
                os.kill(server.postmaster_pid, signal.SIGKILL)
                await asyncio.to_thread(server.ensure_running)
            elif blow == BLOWS - 1:
                keep_busy = partial(start_slow, client, busy)
                fleet.replace(await stop_at_work(fleet, server, choose, keep_busy))
            else:
                fleet.replace(choose.choice(fleet.workers))
        await until_all_end(handles + busy)
        people.cancel()
        runs = [run async for run in client.runs.iterate(payloads=True)]
        seen = await check_runs(client, runs, ledger)
    assert seen["runs"] == BLOWS * OFFICES_PER_BLOW * RUNS_PER_OFFICE + len(busy)
    assert seen["lost"] + seen["lost_activities"] > 0, "nobody was killed at work: it shows nothing"
    check_nothing_is_queued(server)


async def test_a_worker_killed_between_any_two_store_calls_loses_nothing_across_workers(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Traps 6, 8, 23; S4, S7: with an activity, a child and an approval under way."""
    async with Client(server.url) as client, asyncio.TaskGroup() as outside:

        async def start(queue: str) -> RunHandle[object]:
            return await client.start("crash/desk", Errand(number=1, queue=queue), queue=queue)

        people = outside.create_task(decide_all(client))
        points = await kill_at_every_point(fleet, start)
        people.cancel()
        await check_runs(client, [run async for run in client.runs.iterate(payloads=True)], ledger)
    check_nothing_is_queued(server)
    assert points > 20, "the worker makes more calls than that: the switch does not work"
