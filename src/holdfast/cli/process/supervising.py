"""What `dev` and `worker --processes` share: start workers, stop on signals, reap the dead."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType
from typing import Protocol, TypeAlias

from holdfast.cli import exits
from holdfast.cli.process.children import Child
from holdfast.cli.settings import Settings
from holdfast.database.resolve import Database
from holdfast.errors import DatabaseError
from holdfast.store.opening import opened_store
from holdfast.store.port import Store

StartWorker: TypeAlias = Callable[[], Awaitable[Child]]
TellOfCrash: TypeAlias = Callable[[int], Awaitable[None]]


class Overseer(Protocol):
    """Keeps worker processes alive until it is stopped."""

    def stop(self) -> None:
        """Have the workers drain; asked again, have them end at once."""
        ...

    async def run(self) -> int:
        """Go on until stopped; return the exit code."""
        ...


class StopSignals:
    """Calls back on SIGTERM and on Ctrl-C, and remembers whether it was Ctrl-C.

    `arrived` is called by the event loop. `at_once` is called in the signal handler, between two
    instructions of what the main thread executes: it is also heard where code holds the loop.
    """

    def __init__(
        self, arrived: Callable[[], None], at_once: Callable[[], None] = lambda: None
    ) -> None:
        self._arrived, self._at_once = arrived, at_once
        self._heard = self._interrupted = False
        self._loop = asyncio.get_running_loop()
        self._before = {
            number: signal.signal(number, self._arrive)
            for number in (signal.SIGTERM, signal.SIGINT)
        }

    def restore(self) -> None:
        """Leave the signals to those who had them before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def exit_code(self, code: int = exits.OK, *, unasked: int | None = None) -> int:
        """Return the code to end with: that of Ctrl-C, or the one given.

        `unasked` is the one where no signal came.
        """
        if self._interrupted:
            return exits.INTERRUPTED
        return code if self._heard or unasked is None else unasked

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        self._heard = True
        self._interrupted |= number == signal.SIGINT
        self._at_once()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._arrived)


async def oversee(
    settings: Settings,
    database: Database,
    arguments: Sequence[str],
    make: Callable[[StartWorker, TellOfCrash], Overseer],
    *,
    reads: bool = False,
) -> int:
    """Run what `make` makes of how to start a worker with these arguments; return the exit code.

    Workers that `read` have this process's stdin.
    """

    async def start() -> Child:
        everything = [*settings.arguments(), *arguments]
        return await Child.start(everything, settings.environment(), reads=reads)

    async with opened_store(database, settings.schema, connections=1) as store:
        overseer = make(start, reaper(store))
        signals = StopSignals(overseer.stop)
        try:
            return signals.exit_code(await overseer.run())
        finally:
            signals.restore()


logger = logging.getLogger("holdfast.supervisor")


async def workers_of(store: Store, pid: int) -> list[str]:
    """Return the ids of the workers that a process of this machine has signed on."""
    host = socket.gethostname()
    workers = await store.list_workers()
    return [each.worker_id for each in workers if each.pid == pid and each.hostname == host]


async def reap_process(store: Store, pid: int) -> list[str]:
    """Sign off the workers of a process of this machine that has died; return their ids."""
    named = await workers_of(store, pid)
    if not named:
        return []
    reaped, notices = await store.reap_workers(worker_ids=named)
    await store.notify(notices)
    return reaped


def reaper(store: Store) -> Callable[[int], Awaitable[None]]:
    """Return what a supervisor calls when a process died; without a database, silence decides."""

    async def reap(pid: int) -> None:
        try:
            await reap_process(store, pid)
        except DatabaseError as error:
            logger.warning("the runs of process %d wait for its silence: %s", pid, error)

    return reap
