"""Supervise workers, for `dev` and `worker --processes`: start them, stop them, report crashes."""

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
    """Keeps worker processes running until it is stopped."""

    def stop(self) -> None:
        """Let the workers drain; called again, they end at once."""
        ...

    async def run(self) -> int:
        """Run until stopped; return the exit code."""
        ...


class StopSignals:
    """Calls back on SIGTERM and on Ctrl-C, and remembers whether it was Ctrl-C.

    `arrived` is called by the event loop. `at_once` is called in the signal handler, between two
    instructions of the main thread: it is called even if user code blocks the event loop.
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
        """Restore the handlers that were installed before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def exit_code(self, code: int = exits.OK, *, unasked: int | None = None) -> int:
        """Return the exit code: that of Ctrl-C, else `code`.

        `unasked` is returned, if it is given, when no signal came.
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
    """Run the overseer that `make` returns; return the exit code.

    `make` gets a function that starts a worker with these arguments, and one to call when a
    worker has died. If `reads` is set, workers share this process's stdin.
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
    """Return a function that reaps the workers of a dead process.

    If the database is unavailable, they are reaped later, because they are silent.
    """

    async def reap(pid: int) -> None:
        try:
            await reap_process(store, pid)
        except DatabaseError as error:
            logger.warning("the runs of process %d are reaped later: %s", pid, error)

    return reap
