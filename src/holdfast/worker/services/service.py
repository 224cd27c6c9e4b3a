"""The base of all services of a worker: `start`, `stop`, and `run_once` for the one duty.

A service runs when it starts if there may be something to do, then in intervals, and earlier if
something comes due. Any number of workers may run the same service on one database.
"""

from __future__ import annotations

import asyncio
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple

from holdfast.errors import DatabaseError
from holdfast.store.port import Store
from holdfast.types import Duty, Notice
from holdfast.values.loggers import get_logger
from holdfast.values.waits import set_within
from holdfast.worker.agenda import Agenda
from holdfast.worker.backoff import spread
from holdfast.worker.clock import Clock
from holdfast.worker.observing import Observing
from holdfast.worker.outage import OUTAGE

logger = get_logger("holdfast.maintenance")

_LEAST_SECONDS: Final = (
    0.1  # the shortest pause between two runs, also if another transaction locks what is due
)
_STOP_SECONDS: Final = 2.0  # that what a stopped run still has to say may take


class ServiceContext(NamedTuple):
    """What a worker lends to its services."""

    store: Store
    worker_id: str
    clock: Clock
    notify: Callable[[list[Notice]], None]
    interval_seconds: float
    observing: Observing = Observing()
    agenda: Agenda | None = None


class Service(ABC):
    """One duty, done again and again until stopped.

    `duty` is its name in answers to heartbeats, None for one that they never name. It runs every
    `_seconds`, or if that is None, once in `_intervals` intervals of the worker.
    `_first_seconds` is how long it leaves a worker that starts to what is more urgent.
    """

    duty: ClassVar[Duty | None] = None
    _seconds: ClassVar[float | None] = None
    _intervals: ClassVar[int] = 1
    _first_seconds: ClassVar[float] = 0.0
    _longest_seconds: ClassVar[float] = math.inf  # without a run although heartbeats name it not

    def __init__(self, context: ServiceContext) -> None:
        self._store, self._worker_id = context.store, context.worker_id
        self._clock, self._notify = context.clock, context.notify
        self._interval = self._seconds or self._intervals * context.interval_seconds
        self._task: asyncio.Task[None] | None = None
        self._next_due: int | None = None
        self._woken = asyncio.Event()
        self._agenda = context.agenda
        if self._agenda is not None and self.duty is not None:
            self._agenda.watch(self.duty, self.wake)

    @abstractmethod
    async def run_once(self) -> None:
        """Do what is due now."""

    async def attempt(self) -> bool:
        """Do what is due now; log an error, and return False then."""
        self._next_due = None  # calls of `due_at` during the run count
        try:
            await self.run_once()
        except DatabaseError as error:
            OUTAGE.tell(logger, f"{self._duty} failed, and is tried again later", error)
        except Exception:
            logger.exception("%s failed", self._duty)
        else:
            return True
        return False

    @property
    def next_due(self) -> int | None:
        """When something comes due next, as far as `due_at` was told."""
        return self._next_due

    def due_at(self, at: int) -> None:
        """Say that something comes due at a moment of engine time."""
        if self._next_due is None or at < self._next_due:
            self._next_due = at
            self._woken.set()

    def wake(self) -> None:
        """Say that there may be something to do now."""
        self.due_at(self._clock.now())

    async def start(self) -> None:
        """Run from now on. Idempotent."""
        if self._task is None:
            name = f"holdfast {type(self).__name__}"
            self._task = asyncio.create_task(self._run(), name=name)

    async def stop(self) -> None:
        """Stop, also in the middle of a run. Idempotent.

        A run may still have something to say to the database then: it is stopped again if that
        takes long.
        """
        task, self._task = self._task, None
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_STOP_SECONDS)

    async def _run(self) -> None:
        this = asyncio.current_task()
        assert this is not None
        if self._first_seconds or self._is_ruled_out:
            await self._wait(random.uniform(0.5, 1) * (self._first_seconds or self._interval))
        while True:
            pause = self._interval
            if await self.attempt():
                pause = spread(pause)
            if this.cancelling():  # a run that is stopped may end with an error of its own
                return
            await self._wait(pause)

    @property
    def _duty(self) -> str:
        return f"maintenance ({type(self).__name__})"

    @property
    def _is_ruled_out(self) -> bool:
        """True if the last heartbeat said that there is nothing to do."""
        return self._agenda is not None and self._agenda.rules_out(self.duty)

    async def _wait(self, seconds: float) -> None:
        """Wait for `seconds`, longer if there is nothing to do, or until something comes due."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        run_at, latest = began + seconds, began + self._longest_seconds
        await asyncio.sleep(_LEAST_SECONDS)
        while True:
            now = loop.time()
            if run_at <= now < latest and self._is_ruled_out:
                run_at = now + seconds
            pause = run_at - now
            if self._next_due is not None:
                pause = min(pause, (self._next_due - self._clock.now()) / 1e6)
            if pause <= 0:
                return
            self._woken.clear()
            await set_within(self._woken, pause)
