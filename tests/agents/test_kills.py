"""Real workers of agents killed with SIGKILL: what PostgreSQL has recorded is not paid again."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.database.embedded import EmbeddedServer
from tests.agents.worker import FRAMEWORKS, work
from tests.clusters import Homes

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(600)]

RUNS_OF_EACH = 4
BLOWS = (20, 60)  # effects after which a worker dies; the first 12 are first requests
RECORDED = "select run_id || '/' || key from holdfast.events where event_type = 'StepCompleted'"


@pytest.fixture
def server(tmp_path: Path, homes: Homes) -> Iterator[EmbeddedServer]:
    """A database server of the test's own."""
    with EmbeddedServer.acquire(homes.make(tmp_path / "home")) as server:
        yield server


async def test_workers_of_agents_killed_midway_pay_nothing_twice(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    processes = multiprocessing.get_context("forkserver")
    ledger = tmp_path / "ledger"
    ledger.touch()
    async with Client(server.url) as client:
        handles: list[RunHandle[object]] = [
            await client.start(f"agents/{framework}", "hello?", key=str(number))
            for framework in FRAMEWORKS
            for number in range(RUNS_OF_EACH)
        ]
        deciding = asyncio.create_task(decide_all(client))
        paid: list[tuple[set[str], Counter[str]]] = []
        for blow in BLOWS:
            worker = processes.Process(target=work, args=(server.url, ledger), daemon=True)
            worker.start()
            while sum(effects(ledger).values()) < blow:
                assert worker.is_alive(), (tmp_path / "workers.log").read_text()
                await asyncio.sleep(0.01)
            worker.kill()
            worker.join()
            paid.append((recorded(server), effects(ledger)))
        worker = processes.Process(target=work, args=(server.url, ledger), daemon=True)
        worker.start()
        results = await asyncio.gather(*(handle.result() for handle in handles))
        deciding.cancel()
        worker.kill()
        worker.join()
    after = effects(ledger)
    for keys, before in paid:
        assert 0 < len(keys) < len(after), "it died before all was recorded, and after something"
        assert {key: after[key] for key in keys} == {key: before[key] for key in keys}
    assert set(after) == recorded(server)
    ends = {FRAMEWORKS[place // RUNS_OF_EACH]: end for place, end in enumerate(results)}
    assert len(set(results)) == len(FRAMEWORKS), "runs of one framework end alike"
    assert all("refunded" in str(end) for end in ends.values()), ends


async def decide_all(client: Client) -> None:
    """Approve whatever is asked for."""
    while True:
        for asked in await client.approvals.list():
            await client.approvals.decide(asked.run_id, asked.key, True, by="ann")
        await asyncio.sleep(0.1)


def effects(ledger: Path) -> Counter[str]:
    """Return how often each call has had its effect."""
    return Counter(ledger.read_text(encoding="utf-8").splitlines())


def recorded(server: EmbeddedServer) -> set[str]:
    """Return the calls that have their results in a log."""
    with psycopg.connect(server.url) as connection:
        return {str(key) for (key,) in connection.execute(RECORDED)}
