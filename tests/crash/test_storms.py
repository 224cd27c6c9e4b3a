"""Storms of signals over runs whose workers and database are killed meanwhile."""

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
from tests.crash.fleet import Fleet, patiently, start_patiently, start_slow, until_all_end
from tests.crash.leases import stop_at_work
from tests.crash.ledger import check_runs
from tests.crash.workload import GUSTS

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

RUNS = 12
SENDERS = 4
BLOWS = 6


async def test_signal_storms_over_kills_lose_and_repeat_no_signal(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Traps 1, 4, 6, 14, 23; S12: each signal is sent by several senders, and taken once."""
    choose = random.Random(3)
    fleet.start()
    fleet.start()
    busy: list[RunHandle[object]] = []
    async with Client(server.url) as client:
        handles = await start_patiently(client, "stormed", range(RUNS))
        keep_busy = partial(start_slow, client, busy)
        async with asyncio.TaskGroup() as outside:
            for number in range(SENDERS):
                outside.create_task(blow_on(handles, random.Random(number)))
            for blow in range(BLOWS):
                await asyncio.sleep(choose.uniform(0.3, 1.0))
                if blow == BLOWS // 2:
                    os.kill(server.postmaster_pid, signal.SIGKILL)
                    await asyncio.to_thread(server.ensure_running)
                elif blow == BLOWS - 1:
                    fleet.replace(await stop_at_work(fleet, server, choose, keep_busy))
                else:
                    fleet.replace(choose.choice(fleet.workers))
        runs = await until_all_end(handles + busy)
        seen = await check_runs(client, runs, ledger)
    assert seen["runs"] == RUNS + len(busy)
    assert seen["lost"] > 0, "no worker was killed while it held a run: the test shows nothing"


async def blow_on(handles: list[RunHandle[object]], choose: random.Random) -> None:
    """Send every signal to every run as fast as the database takes them, in an order of its own."""
    sent = [(handle, gust) for handle in handles for gust in range(GUSTS)]
    choose.shuffle(sent)
    for handle, gust in sent:

        async def send(handle: RunHandle[object] = handle, gust: int = gust) -> None:
            await handle.signal("gust", gust, signal_id=f"gust-{gust}")

        await patiently(send)
