"""Workers of flows killed at random and at every point between two store calls, and the database.

Every run ends, each element of a map has its result once and in order, every effect outside is
explained by an attempt.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.database.embedded import EmbeddedServer
from holdfast.database.urls import split_urls
from tests.crash.fleet import Fleet, kill_at_every_point, patiently, start_patiently, until_all_end
from tests.crash.flows import Sheet
from tests.crash.leases import stop_at_work
from tests.crash.ledger import (
    check_flows,
    check_letters,
    check_nothing_is_queued,
    query_all,
    read_ledger,
)

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

ROWS = 1_000
BLOWS = 8
RUNS_PER_BLOW = 5


async def test_a_map_whose_workers_are_killed_has_each_result_once_and_in_order(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Trap 41: a worker killed in the middle of a map of 1,000 elements; P5, P7."""
    choose = random.Random(1)
    fleet.start()
    fleet.start()
    started: list[RunHandle[object]] = []
    async with Client(server.url) as client:
        await until_compiled(server)

        async def start() -> RunHandle[object]:
            sheets = [Sheet(rows=ROWS, seconds=0.01)]
            started.extend(await start_patiently(client, "sheet", sheets))
            return started[-1]

        first = await start()
        for done in (100, 400):
            await until_results(server, first.run_id, done)
            fleet.replace(await stop_at_work(fleet, server, choose, start, busy=first))
        runs = await until_all_end(started)
    seen = check_flows(server, runs, ledger)
    assert seen["elements"] == 2 * ROWS * len(started)
    assert seen["lost"] > 0, "nobody was killed at work: the test shows nothing"
    check_nothing_is_queued(server)


async def test_flows_whose_workers_and_database_are_killed_at_random_lose_nothing(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Traps 42, 46; P5, P7: workers and the postmaster killed with -9 under 40 runs."""
    choose = random.Random(3)
    for _ in range(3):
        fleet.start()
    handles: list[RunHandle[object]] = []
    async with Client(server.url) as client:
        await until_compiled(server)
        for blow in range(BLOWS):
            sheets = [Sheet(rows=row, seconds=0.01) for row in range(RUNS_PER_BLOW)]
            handles += await start_patiently(client, "sheet", sheets)
            await asyncio.sleep(choose.uniform(0.05, 0.5))
            if blow in (2, 5):
                os.kill(server.postmaster_pid, signal.SIGKILL)
                await asyncio.to_thread(server.ensure_running)
            elif blow % 2:
                fleet.replace(choose.choice(fleet.workers))
        runs = await until_all_end(handles)
    seen = check_flows(server, runs, ledger)
    assert seen["runs"] == BLOWS * RUNS_PER_BLOW
    check_nothing_is_queued(server)


async def test_a_worker_of_a_flow_killed_at_every_point_between_store_calls_loses_nothing(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Each point before and after a store call is a place to die."""
    handles: list[RunHandle[object]] = []
    async with Client(server.url) as client:
        fleet.start("another-queue")  # it compiles the flow
        await until_compiled(server)

        async def start(queue: str) -> RunHandle[object]:
            handle = await client.start("crash/sheet", Sheet(rows=3, seconds=0.005), queue=queue)
            handles.append(handle)
            return handle

        points = await kill_at_every_point(fleet, start)
        runs = [await patiently(handle.get) for handle in handles]
        check_flows(server, runs, ledger)
    assert points > 10, "the worker makes more calls than that: the switch does not work"


async def test_rules_and_tolerant_maps_survive_kills_and_a_cancel(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """A step that always runs is recorded once, and no more elements than three are under way."""
    choose = random.Random(5)
    fleet.start()
    fleet.start()
    handles: list[RunHandle[object]] = []
    stopped: list[bool] = []
    async with Client(server.url) as client:
        await until_compiled(server)
        for blow in range(4):
            sheets = [Sheet(rows=rows, seconds=0.02) for rows in (16, 9)]
            handles += await start_patiently(client, "letters", sheets)
            await asyncio.sleep(choose.uniform(0.1, 0.4))
            if blow % 2:
                stopped.append(await handles[-2].cancel())
                await asyncio.sleep(choose.uniform(0, 0.1))
            fleet.replace(choose.choice(fleet.workers))
        async with asyncio.timeout(120):
            await asyncio.gather(*(each.result() for each in handles), return_exceptions=True)
        runs = [await handle.get() for handle in handles]
    ends = Counter(run.status for run in runs)
    assert ends == {"completed": 8 - sum(stopped), "cancelled": sum(stopped)}, ends
    assert any(stopped), "no cancel came in time"
    assert sum(check_letters(server, run, ledger) for run in runs) > 0, "nobody was killed at work"
    check_nothing_is_queued(server)


async def test_steps_that_are_runs_survive_kills(
    fleet: Fleet, server: EmbeddedServer, ledger: Path
) -> None:
    """Each is one run, whose result is used once, while workers and the postmaster are killed."""
    choose = random.Random(7)
    for _ in range(2):
        fleet.start()
    handles: list[RunHandle[object]] = []
    async with Client(server.url) as client:
        await until_compiled(server)
        for blow in range(6):
            sheets = [Sheet(rows=rows, seconds=0.05) for rows in (7, 4)]
            handles += await start_patiently(client, "orders", sheets)
            await asyncio.sleep(choose.uniform(0.05, 0.5))
            if blow == 3:
                os.kill(server.postmaster_pid, signal.SIGKILL)
                await asyncio.to_thread(server.ensure_running)
            else:
                fleet.replace(choose.choice(fleet.workers))
        runs = await until_all_end(handles)
    done = {nonce for each in read_ledger(ledger).values() for nonce in each}
    used = [nonce for run in runs for nonce in cast("dict[str, list[str]]", run.output)["shipped"]]
    assert len(set(used)) == len(used) == 6 * (8 + 5)
    assert done.issuperset(used)
    parcels = "select status from holdfast.runs where name = 'crash/parcel'"
    assert query_all(server, parcels) == [("completed",)] * len(used)
    check_nothing_is_queued(server)


async def until_compiled(server: EmbeddedServer) -> None:
    """Wait until a worker has brought the flows: before that a name would mean a workflow."""
    flows = 3 * len(split_urls(server.url))
    await until(server, "select count(*) from holdfast.flows", (), flows)


async def until_results(server: EmbeddedServer, run_id: UUID, count: int) -> None:
    """Wait until the maps of a run have so many results."""
    query = "select count(*) from holdfast.step_tasks where run_id = %s"
    await until(server, query, (run_id,), count)


async def until(server: EmbeddedServer, query: str, values: tuple[object, ...], count: int) -> None:
    """Wait until counts of all databases together have come to a number."""
    async with asyncio.timeout(120):
        while (
            sum(row[0] for row in await asyncio.to_thread(query_all, server, query, values)) < count
        ):
            await asyncio.sleep(0.01)
