"""Processes really killed: workers at random and at every point between two store calls, and
the database's own. Every run ends, every recorded result is used once, every effect outside is
explained by the log.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.errors import DatabaseUnavailable, RunEnded
from holdfast.store.embedded import EmbeddedServer
from holdfast.store.migrate import render
from holdfast.types import Run
from tests.conftest import execute
from tests.crash.ledger import check_runs
from tests.crash.workload import LEDGER

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
RUNS_OF_EACH_KIND = 50
BLOWS = 10
KINDS = ("chain", "fan_out", "signalled", "everything")


class Fleet:
    """Worker processes that a test starts and kills."""

    def __init__(self, url: str, ledger: Path) -> None:
        self._url, self._ledger = url, ledger
        self._output = ledger.with_name("workers.log").open("ab")
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker; it takes runs as soon as it can."""
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.worker", self._url, *options],
            cwd=ROOT,
            env={**os.environ, LEDGER: str(self._ledger)},
            stdout=self._output,
            stderr=self._output,
        )
        self.workers.append(worker)
        return worker

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker with SIGKILL, if it has not done so itself."""
        worker.kill()
        worker.wait()
        self.workers.remove(worker)

    def kill_all(self) -> None:
        """Leave no process behind."""
        for worker in list(self.workers):
            self.kill(worker)
        self._output.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A database server of the test's own, which it may kill."""
    with EmbeddedServer.acquire(tmp_path / "home") as server:
        execute(server.url, render())
        yield server


@pytest.fixture
def fleet(server: EmbeddedServer, tmp_path: Path) -> Iterator[Fleet]:
    """Give a test its workers, and end them with it."""
    ledger = tmp_path / "ledger"
    ledger.touch()
    fleet = Fleet(server.url, ledger)
    yield fleet
    fleet.kill_all()


async def until_all_end(handles: list[RunHandle[object]], seconds: float) -> list[Run]:
    """Wait for all runs; name those that do not end."""
    try:
        async with asyncio.timeout(seconds):
            for handle in handles:
                await patiently(handle.result)
    except TimeoutError:
        runs = [await handle.get() for handle in handles]
        hanging = [(r.run_id, r.name, r.state, r.wait) for r in runs if r.status == "running"]
        pytest.fail(f"{len(hanging)} run(s) have not ended, such as {hanging[:3]}")
    return [await handle.get() for handle in handles]


async def send_signals(handles: list[RunHandle[object]], count: int) -> None:
    """Signal every run `count` times, each delivery repeated as a nervous sender would."""
    for i in range(count):
        for handle in handles:
            send = partial(handle.signal, "go", i, signal_id=f"go-{i}")
            with suppress(RunEnded):  # some take but one
                await patiently(send)
                await patiently(send)
            await asyncio.sleep(0.002)


async def start_patiently(
    client: Client, kind: str, numbers: Iterable[int]
) -> list[RunHandle[object]]:
    """Start a run for each number; a lost answer leaves what was started as it is."""
    start = partial(client.start, kind)
    return [await patiently(partial(start, n, key=f"{kind}-{uuid4()}")) for n in numbers]


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while the database is away."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except DatabaseUnavailable:
                await asyncio.sleep(0.1)


async def test_workers_and_the_database_killed_at_random_lose_and_repeat_nothing(
    fleet: Fleet, server: EmbeddedServer, tmp_path: Path
) -> None:
    """Traps 8, 18, 22, 23; S5, S12, S15: 200 runs, workers and the postmaster killed with -9."""
    choose = random.Random(7)
    fleet.start()
    fleet.start()
    async with Client(server.url) as client, asyncio.TaskGroup() as senders:
        handles = []
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
            else:
                fleet.kill(choose.choice(fleet.workers))
                fleet.start()
        runs = await until_all_end(handles, 120)
        seen = await check_runs(client, runs, tmp_path / "ledger")
    assert seen["runs"] == len(KINDS) * RUNS_OF_EACH_KIND
    assert seen["lost"] > 0, "no worker was killed while it held a run: the test shows nothing"


async def test_a_worker_killed_at_every_point_between_store_calls_loses_nothing(
    fleet: Fleet, server: EmbeddedServer, tmp_path: Path
) -> None:
    """Traps 6, 8, 23; S4: each point before and after a store call is a place to die."""
    at_once, point, survived = 6, 1, False
    async with Client(server.url) as client:
        while not survived:
            points = range(point, point + at_once)
            point += at_once
            survived = not all(
                await asyncio.gather(
                    *(_die_at(fleet, client, n, tmp_path / "ledger") for n in points)
                )
            )
    assert point > 20, "the worker makes more calls than that: the switch does not work"


async def _die_at(fleet: Fleet, client: Client, point: int, ledger: Path) -> bool:
    """Run one workflow with a worker that dies at a point; say whether it came to that."""
    queue = f"point-{point}"
    doomed = fleet.start("--queue", queue, "--kill-at", str(point))
    handle = await client.start("everything", point, queue=queue)
    await handle.signal("go", point, signal_id="go")
    ended = asyncio.create_task(handle.result())
    died = asyncio.create_task(asyncio.to_thread(doomed.wait))
    await asyncio.wait({ended, died}, return_when=asyncio.FIRST_COMPLETED)
    killed = not ended.done() or doomed.poll() is not None
    heir = fleet.start("--queue", queue) if killed else doomed
    async with asyncio.timeout(60):
        await ended
    fleet.kill(heir)
    await died
    await check_runs(client, [await handle.get()], ledger)
    return killed
