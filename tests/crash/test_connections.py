"""Connections that fall mute, lose answers, are slow, or are cut, under load: between the workers
and the database, and between the clients and it. No process dies. Every run ends, every recorded
result is used once, every effect outside is explained by the logs, and nothing is left queued.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.database.embedded import EmbeddedServer
from tests.crash.across import Errand
from tests.crash.fleet import (
    Fleet,
    patiently,
    send_signals,
    start_patiently,
    start_slow,
    until_all_end,
)
from tests.crash.leases import until_held
from tests.crash.ledger import check_nothing_is_queued, check_runs
from tests.crash.people import decide_all, update_all
from tests.crash.worker import DEFAULT, impatient
from tests.proxy import Proxy

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

KINDS = ("chain", "fan_out", "signalled", "everything")
RUNS_OF_EACH_KIND = 3  # a blow
RUNS_PER_OFFICE = 4  # itself, its branch, two leaves
SIDE = "side"
COMMIT_TROUBLED = "a commit of"  # what a worker logs then
CREWS = ((DEFAULT,), (DEFAULT, SIDE), (SIDE,))


@pytest.fixture
def way(server: EmbeddedServer) -> Iterator[Proxy]:
    """The way of the workers to the database."""
    with Proxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def clients_way(server: EmbeddedServer) -> Iterator[Proxy]:
    """The way of the clients to the database."""
    with Proxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def fleet(way: Proxy, ledger: Path) -> Iterator[Fleet]:
    """Workers whose connections a test can trouble."""
    fleet = Fleet(way.url, ledger, patience=1.0)
    yield fleet
    fleet.kill_all()


async def mute(proxy: Proxy) -> None:
    proxy.mute()


async def lose_answers(proxy: Proxy) -> None:
    """What was asked has happened, and who asked does not know."""
    proxy.swallow_answers()


async def cut(proxy: Proxy) -> None:
    proxy.cut()


async def refuse(proxy: Proxy) -> None:
    """Nobody comes through for a while that is longer than a lease."""
    proxy.refuse()
    proxy.cut()
    await asyncio.sleep(1.5)
    proxy.refuse(False)


async def slow_down(proxy: Proxy) -> None:
    """Each way takes a while, and then the connections are cut with much under way."""
    proxy.delay(0.1)
    await asyncio.sleep(0.5)
    proxy.cut()
    proxy.delay(0)


TROUBLES = (mute, lose_answers, cut, slow_down, refuse, lose_answers, mute, cut)


async def test_troubled_connections_lose_and_repeat_nothing(
    fleet: Fleet,
    way: Proxy,
    clients_way: Proxy,
    server: EmbeddedServer,
    ledger: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Traps 8, 18, 22, 23; S5, S12: 96 runs of steps, and 32 across workers."""
    choose = random.Random(5)
    for queues in CREWS:
        fleet.start(*queues)
    async with Client(clients_way.url) as client, asyncio.TaskGroup() as outside:
        impatient(1.0, monkeypatch.setattr)  # once it is connected
        async with asyncio.timeout(120):
            while len(await patiently(client.workers.list)) < len(CREWS):
                await asyncio.sleep(0.02)
        people = outside.create_task(decide_all(client))
        handles: list[RunHandle[object]] = []
        busy: list[RunHandle[object]] = []
        for trouble in TROUBLES:
            wave = [
                handle
                for kind in KINDS
                for handle in await start_patiently(client, kind, range(RUNS_OF_EACH_KIND))
            ]
            offices = await start_patiently(client, "office", [Errand(number=1, queue=SIDE)])
            handles += wave + offices
            outside.create_task(send_signals(wave + offices, 3))
            outside.create_task(update_all(offices))
            await asyncio.sleep(choose.uniform(0.1, 0.4))
            joined = way.joined
            await trouble(way)
            await trouble(clients_way)
            await until_joined(way, joined)
        while COMMIT_TROUBLED not in said(ledger):
            await until_held(server, await start_slow(client, busy))
            joined = way.joined
            await mute(way)  # beyond the end of its step
            await until_joined(way, joined)
        await until_all_end(handles + busy)
        people.cancel()
    monkeypatch.undo()
    async with Client(server.url) as client:
        runs = [run async for run in client.runs.iterate(payloads=True)]
        seen = await check_runs(client, runs, ledger)
    per_blow = len(KINDS) * RUNS_OF_EACH_KIND + RUNS_PER_OFFICE
    assert seen["runs"] == len(TROUBLES) * per_blow + len(busy)
    assert all(worker.exitcode is None for worker in fleet.workers), "see workers.log"
    check_nothing_is_queued(server)


def said(ledger: Path) -> str:
    """Return what the workers have logged."""
    return ledger.with_name("workers.log").read_text()


async def until_joined(proxy: Proxy, before: int) -> None:
    """Wait until the workers have found out, and come over new connections."""
    async with asyncio.timeout(120):
        while proxy.joined == before:
            await asyncio.sleep(0.02)
