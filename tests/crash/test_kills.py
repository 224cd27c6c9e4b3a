"""Processes really killed: workers at random and at every point between two store calls, and
the database's own. Every run ends, every recorded result is used once, every effect outside is
explained by the log.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from functools import partial
from pathlib import Path

import pytest

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.database.embedded import EmbeddedServer
from tests.crash.fleet import (
    Fleet,
    kill_at_every_point,
    send_signals,
    start_patiently,
    start_slow,
    until_all_end,
)
from tests.crash.leases import stop_at_work
from tests.crash.ledger import check_runs

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

RUNS_OF_EACH_KIND = 50
BLOWS = 10
KINDS = ("chain", "fan_out", "signalled", "everything")


async def test_workers_and_the_database_killed_at_random_lose_and_repeat_nothing(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Traps 8, 18, 22, 23; S5, S12, S15: 200 runs, workers and the postmaster killed with -9."""
    choose = random.Random(7)
    fleet.start()
    fleet.start()
    async with Client(server.url) as client, asyncio.TaskGroup() as senders:
        handles: list[RunHandle[object]] = []
        busy: list[RunHandle[object]] = []
        for blow in range(BLOWS):
            wave = [
                handle
                for kind in KINDS
                for handle in await start_patiently(client, kind, range(RUNS_OF_EACH_KIND // BLOWS))
            ]
            handles += wave
            senders.create_task(send_signals(wave[len(wave) // 2 :], 3))
            await asyncio.sleep(choose.uniform(0.1, 0.6))
            if blow in (2, 6):
                os.kill(server.postmaster_pid, signal.SIGKILL)
                await asyncio.to_thread(server.ensure_running)
            elif blow == BLOWS - 1:
                keep_busy = partial(start_slow, client, busy)
                fleet.replace(await stop_at_work(fleet, server, choose, keep_busy))
            else:
                fleet.replace(choose.choice(fleet.workers))
        runs = await until_all_end(handles + busy)
        seen = await check_runs(client, runs, ledger)
    assert seen["runs"] == len(KINDS) * RUNS_OF_EACH_KIND + len(busy)
    assert seen["lost"] > 0, "no worker was killed while it held a run: the test shows nothing"


async def test_a_worker_killed_at_every_point_between_store_calls_loses_nothing(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Traps 6, 8, 23; S4: each point before and after a store call is a place to die."""
    async with Client(server.url) as client:

        async def start(queue: str) -> RunHandle[object]:
            handle = await client.start("crash/everything", 1, queue=queue)
            await handle.signal("go", 1, signal_id="go")
            return handle

        points = await kill_at_every_point(fleet, start)
        await check_runs(client, [run async for run in client.runs.iterate(payloads=True)], ledger)
    assert points > 20, "the worker makes more calls than that: the switch does not work"
