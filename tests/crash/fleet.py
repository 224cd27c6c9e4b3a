"""Worker processes to be killed, and callers that are patient with what goes away meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.client.run import Run
from holdfast.database.urls import split_urls
from holdfast.errors import DatabaseUnavailable, RunEnded
from tests.crash.processes import processes
from tests.crash.worker import DEFAULT, QUICK, Pace, work

T = TypeVar("T")

POINTS_AT_ONCE = 12


class Fleet:
    """Worker processes that a test starts and kills."""

    def __init__(
        self,
        url: str,
        ledger: Path,
        patience: float | None = None,
        target: Callable[..., None] = work,
    ) -> None:
        """`patience`: how many seconds the workers' calls wait for an answer, if not as usual.

        Workers that start from now on use the Redis at `redis`, if it is not empty. `target` is
        what their processes run.
        """
        self._url, self._ledger, self._patience, self._target = url, ledger, patience, target
        self.redis = ""
        self.databases = len(split_urls(url))
        self._again: dict[ForkServerProcess, Callable[[], ForkServerProcess]] = {}

    @property
    def workers(self) -> list[ForkServerProcess]:
        """The workers that have not been killed, the oldest first."""
        return list(self._again)

    def start(
        self,
        *queues: str,
        kill_at: int = 0,
        pace: Pace = QUICK,
        release: int = 0,
        archive: str = "",
        shard: int | None = None,
    ) -> ForkServerProcess:
        """Start a worker of these queues; it takes work as soon as it can.

        With an archive, it sweeps all the time. Of several databases it serves one, or all.
        """
        worker = processes.Process(
            target=self._target,
            args=(
                self._url,
                queues or (DEFAULT,),
                kill_at,
                self._ledger,
                self._patience,
                pace,
                release,
                archive,
                self.redis,
                shard,
            ),
            daemon=True,
        )
        worker.start()
        again = partial(self.start, *queues, kill_at=kill_at, pace=pace, release=release)
        self._again[worker] = partial(again, archive=archive, shard=shard)
        return worker

    def kill(self, worker: ForkServerProcess) -> Callable[[], ForkServerProcess]:
        """Kill a worker with SIGKILL, if it has not done so itself; return what starts another."""
        worker.kill()
        worker.join()
        return self._again.pop(worker)

    def replace(self, worker: ForkServerProcess) -> ForkServerProcess:
        """Kill a worker, and start another of its kind."""
        return self.kill(worker)()

    def freeze(self, worker: ForkServerProcess) -> None:
        """Stop a worker where it stands, with SIGSTOP."""
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)

    def thaw(self, worker: ForkServerProcess) -> None:
        """Let a stopped worker continue."""
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """Leave no process behind."""
        for worker in self.workers:
            self.kill(worker)


async def kill_at_every_point(
    fleet: Fleet, start: Callable[[str], Awaitable[RunHandle[object]]]
) -> int:
    """Start a run for each point between two store calls, with a worker that dies there.

    `start` starts it on a queue of its own. Several die at once, and one worker succeeds them.
    Ends with the first worker that survives its run; returns how many points there were.
    """
    points = 0
    while True:
        batch = range(points + 1, points + 1 + POINTS_AT_ONCE // fleet.databases)
        deaths = await asyncio.gather(*(_die_at(fleet, point, start) for point in batch))
        orphans = {f"point-{death.point}": death.ended for death in deaths if death.killed}
        if orphans:
            successor = fleet.start(*orphans)
            await _until_one_ends(successor, asyncio.gather(*orphans.values()))
            fleet.kill(successor)
        await asyncio.gather(*(death.ended for death in deaths))
        points += len(orphans)
        if len(orphans) < len(batch):
            return points


@dataclass(frozen=True)
class _Death:
    """What became of a worker that was to die at a point, and the end of its run."""

    point: int
    killed: bool
    ended: asyncio.Task[object]


async def _die_at(
    fleet: Fleet, point: int, start: Callable[[str], Awaitable[RunHandle[object]]]
) -> _Death:
    """Have a worker reach the point at which it dies, or the end of its run."""
    queue = f"point-{point}"
    doomed = fleet.start(queue, kill_at=point)
    handle = await start(queue)
    ended = asyncio.create_task(handle.result())
    await _until_one_ends(doomed, ended)
    killed = doomed.exitcode is not None
    fleet.kill(doomed)
    return _Death(point, killed, ended)


async def _until_one_ends(worker: ForkServerProcess, run: asyncio.Future[object]) -> None:
    """Wait for the end of a worker or a run; fail where the worker ended otherwise than killed."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(worker.sentinel, gone.set)
    died = asyncio.create_task(gone.wait())
    async with asyncio.timeout(120):
        await asyncio.wait({died, run}, return_when=asyncio.FIRST_COMPLETED)
    died.cancel()
    loop.remove_reader(worker.sentinel)
    assert worker.exitcode in (None, -signal.SIGKILL), "a worker ended by itself: see workers.log"


async def until_all_end(handles: list[RunHandle[object]]) -> list[Run]:
    """Wait for all runs; name those that do not end."""
    try:
        async with asyncio.timeout(240):
            for handle in handles:
                await patiently(handle.result)
    except TimeoutError:
        runs = [await patiently(handle.get) for handle in handles]
        hanging = [(r.run_id, r.name, r.state, r.wait) for r in runs if r.status == "running"]
        pytest.fail(f"{len(hanging)} run(s) have not ended, such as {hanging[:3]}")
    return [await patiently(handle.get) for handle in handles]


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
    client: Client, kind: str, inputs: Iterable[object]
) -> list[RunHandle[object]]:
    """Start a run for each input; a lost answer leaves what was started as it is."""
    start = partial(client.start, f"crash/{kind}")
    return [await patiently(partial(start, each, key=f"{kind}-{uuid4()}")) for each in inputs]


async def start_slow(client: Client, started: list[RunHandle[object]]) -> RunHandle[object]:
    """Start a run that keeps a worker busy for a second, and add it to those started."""
    [handle] = await start_patiently(client, "slow", [1.0])
    started.append(handle)
    return handle


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while the database is away."""
    async with asyncio.timeout(120):
        while True:
            try:
                return await call()
            except DatabaseUnavailable:
                await asyncio.sleep(0.1)
