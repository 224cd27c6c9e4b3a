"""What any worker does for all.

Ending runs and activities at their deadlines, forgetting dead workers, and saying what waits for
a worker that nobody runs.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from holdfast.errors import DatabaseError
from holdfast.store.port import Store
from holdfast.types import Notice
from holdfast.worker.clock import Clock

logger = logging.getLogger("holdfast.maintenance")

_BATCH = 100
_UNSERVED_MICROS = 30_000_000  # between two looks for what no worker serves
_LEAST_SECONDS = 0.1  # between two looks, also while an overdue run's row is held by somebody


class TimeOut(Protocol):
    """A method of the store that ends what is past its time."""

    async def __call__(self, *, limit: int) -> tuple[int, int | None, list[Notice]]: ...


class Maintenance:
    """Look every `interval_seconds`, and when the next deadline comes; any number may run.

    `handlers` are those of the worker's own app: a database may be shared with others. `adopt`
    takes over a little of what is from before names had apps.
    """

    def __init__(
        self,
        store: Store,
        worker_id: str,
        clock: Clock,
        notify: Callable[[list[Notice]], None],
        handlers: Iterable[str],
        adopt: Callable[[], Awaitable[None]],
        *,
        interval_seconds: float,
        silent_seconds: float,
    ) -> None:
        self._store, self._clock, self._notify = store, clock, notify
        self._worker_id = worker_id
        self._interval, self._silent = interval_seconds, silent_seconds
        self._adopt = adopt
        self._names = {_name_of(handler) for handler in handlers}
        self._task: asyncio.Task[None] | None = None
        self._next_due: int | None = None
        self._look_at = 0  # for what no worker serves
        self._warned: set[tuple[str, str]] = set()
        self._woken = asyncio.Event()

    def due_at(self, at: int) -> None:
        """Say that a deadline is at a moment of engine time."""
        if self._next_due is None or at < self._next_due:
            self._next_due = at
            self._woken.set()

    async def start(self) -> None:
        """Begin to look. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="holdfast maintenance")

    async def stop(self) -> None:
        """Stop looking. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def run_once(self) -> float:
        """Do what is due; return how many seconds may pass until the next look."""
        dead, notices = await self._store.reap_workers(
            observer=self._worker_id, silent_seconds=self._silent
        )
        if dead:
            logger.warning(
                "%d worker(s) fell silent, their work goes on elsewhere: %s",
                len(dead),
                ", ".join(dead),
            )
        self._notify(notices)
        self._next_due = None  # what is said of deadlines while we look counts, too
        for time_out in (self._store.time_out_runs, self._store.time_out_activities):
            next_due = await self._drain(time_out)
            if next_due is not None:
                self.due_at(next_due)
        await self._adopt()
        await self._warn_of_unserved()
        return self._interval * random.uniform(0.8, 1.2)

    async def _drain(self, time_out: TimeOut) -> int | None:
        """End all that is past its time; return when the next one is due."""
        while True:
            ended, next_due, notices = await time_out(limit=_BATCH)
            self._notify(notices)
            if ended < _BATCH:
                return next_due

    async def _warn_of_unserved(self) -> None:
        """Say once of each queue and handler that its tasks wait for a worker nobody runs.

        Of names that the app has in no version, only those who debug are told: they are another
        app's, whose worker need not run now.
        """
        now = self._clock.now()
        if now < self._look_at:
            return
        self._look_at = now + _UNSERVED_MICROS
        waiting = {
            (queue, handler): tasks for queue, handler, tasks in await self._store.unserved()
        }
        for (queue, handler), tasks in waiting.items():
            if (queue, handler) not in self._warned:
                logger.log(
                    logging.WARNING if _name_of(handler) in self._names else logging.DEBUG,
                    "no worker runs %s of queue %s: %d task(s) wait. Start a worker that has it, "
                    "or end what waits for it",
                    handler.removesuffix("@0"),  # an activity has no version
                    queue,
                    tasks,
                )
        self._warned = set(waiting)

    async def _run(self) -> None:
        while True:
            try:
                pause = await self.run_once()
            except DatabaseError as error:
                logger.warning("maintenance is put off: %s", error)
                pause = self._interval
            except Exception:
                logger.exception("maintenance failed")
                pause = self._interval
            await self._wait(pause)

    async def _wait(self, seconds: float) -> None:
        """Wait for so long, or until the next deadline."""
        loop = asyncio.get_running_loop()
        look_at = loop.time() + seconds
        await asyncio.sleep(_LEAST_SECONDS)
        while True:
            pause = look_at - loop.time()
            if self._next_due is not None:
                pause = min(pause, (self._next_due - self._clock.now()) / 1e6)
            if pause <= 0:
                return
            self._woken.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            except TimeoutError:
                return


def _name_of(handler: str) -> str:
    """Return the name of `name@version`."""
    return handler.partition("@")[0]
