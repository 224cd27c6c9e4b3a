"""Processes that are stopped and continue: a worker past its leases, a database past all leases.

No process is dead, but a stopped one looks dead. A worker releases the runs that others took
meanwhile, and keeps the rest.
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
from holdfast.database.urls import split_urls
from tests.crash.fleet import (
    Fleet,
    patiently,
    send_signals,
    start_patiently,
    start_slow,
    until_all_end,
)
from tests.crash.leases import stop_at_work
from tests.crash.ledger import check_runs, query_all, read_ledger
from tests.crash.worker import DEFAULT, PATIENT

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

RUNS = 6
OUTAGE_SECONDS = 10.0  # longer than the silence and the leases of patient workers
KINDS = ("chain", "fan_out", "signalled", "everything")
BLOWS = 8


async def test_an_outage_beyond_the_silence_and_the_leases_costs_no_worker_its_runs(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Traps 8, 10, 22; S12: long steps that are under way run once. One worker returns later."""
    late, _ = [fleet.start(pace=PATIENT) for _ in range(2)]
    async with Client(server.url) as client:
        async with asyncio.timeout(60):
            # Each has a worker for each shard. One that cannot sign on ends.
            while len(await client.workers.list()) < 2 * len(split_urls(server.url)):
                await asyncio.sleep(0.05)
        handles = await start_patiently(client, "slow", [OUTAGE_SECONDS + 5] * RUNS)
        await until_executed(ledger, RUNS)
        os.kill(server.postmaster_pid, signal.SIGKILL)
        await asyncio.sleep(OUTAGE_SECONDS)
        fleet.freeze(late)
        await asyncio.to_thread(server.ensure_running)
        await until_heard(server)
        await asyncio.sleep(PATIENT.silent / 4)
        fleet.thaw(late)
        runs = await until_all_end(handles)
        seen = await check_runs(client, runs, ledger)
    assert (seen["runs"], seen["lost"], seen["extra"]) == (RUNS, 0, 0)


@pytest.mark.parametrize("moment", ["while its steps run elsewhere", "when its runs have ended"])
async def test_a_worker_that_was_stopped_past_its_leases_lets_go(
    fleet: Fleet, server: EmbeddedServer, ledger: Path, moment: str
) -> None:
    """Traps 8 and 32; S5, S12: it writes nothing, and works on with what is its own."""
    stopped = fleet.start(DEFAULT, "own")
    async with Client(server.url) as client:
        handles = await start_patiently(client, "slow", [2.0] * RUNS)
        await until_executed(ledger, RUNS)
        fleet.freeze(stopped)
        fleet.start(DEFAULT)
        await until_executed(ledger, 2 * RUNS)
        if moment == "when its runs have ended":
            await until_all_end(handles)
        fleet.thaw(stopped)
        runs = await until_all_end(handles)
        logs = [await client.runs.log(run.run_id) for run in runs]
        own = await client.start("crash/chain", 1, queue="own")
        runs += await until_all_end([own])
        assert [await client.runs.log(handle.run_id) for handle in handles] == logs
        seen = await check_runs(client, runs, ledger)
    assert seen["lost"] >= RUNS
    assert seen["extra"] >= RUNS


async def test_workers_stopped_at_random_lose_and_repeat_nothing(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Traps 8, 18, 32; S5, S12: some are killed while they stand still."""
    choose = random.Random(5)
    for _ in range(3):
        fleet.start()
    handles: list[RunHandle[object]] = []
    busy: list[RunHandle[object]] = []
    async with Client(server.url) as client, asyncio.TaskGroup() as senders:
        keep_busy = partial(start_slow, client, busy)
        for blow in range(BLOWS):
            for kind in KINDS:
                handles += await start_patiently(client, kind, range(5))
            senders.create_task(send_signals(handles[-10:], 3))
            await asyncio.sleep(choose.uniform(0.05, 0.3))
            if blow == BLOWS - 1:
                worker = await stop_at_work(fleet, server, choose, keep_busy)
            else:
                worker = choose.choice(fleet.workers)
                fleet.freeze(worker)
            await asyncio.sleep(choose.uniform(0.5, 2.5))
            if blow % 3 == 1:
                fleet.replace(worker)
            else:
                fleet.thaw(worker)
        runs = await until_all_end(handles + busy)
        seen = await check_runs(client, runs, ledger)
    assert seen["runs"] == BLOWS * len(KINDS) * 5 + len(busy)
    assert seen["lost"] > 0, "no worker was stopped while it held a run: the test shows nothing"


async def until_heard(server: EmbeddedServer) -> None:
    """Wait until a worker has told the server that started last that it is alive."""
    query = "select from holdfast.workers where heard_at > pg_postmaster_start_time()"
    async with asyncio.timeout(120):
        while not await asyncio.to_thread(query_all, server, query):
            await asyncio.sleep(0.01)


async def until_executed(ledger: Path, count: int) -> None:
    """Wait until so many executions of steps have begun."""

    async def executed() -> bool:
        return sum(len(nonces) for nonces in read_ledger(ledger).values()) >= count

    async with asyncio.timeout(120):
        while not await patiently(executed):
            await asyncio.sleep(0.05)
