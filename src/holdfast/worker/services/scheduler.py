"""Firing schedules: computing their ticks, and moving them on in the database when these come.

Any number of workers do it. Each is given other schedules, a little before they are due, and fires
them at their moments. If it dies, others are given them a few seconds later.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    HoldfastError,
    TransientDatabaseError,
)
from holdfast.schedules.planning import plan_backfill, plan_firing
from holdfast.types import BackfillFiring, DueBackfill, DueSchedule, Firing, NextLook
from holdfast.values.loggers import get_logger
from holdfast.values.waits import set_within
from holdfast.worker.outage import OUTAGE
from holdfast.worker.services.service import Service, ServiceContext

logger = get_logger("holdfast.schedules")

T = TypeVar("T")

_BATCH: Final = 500  # schedules of one call
_AT_ONCE: Final = 2  # calls that fire
_BREATH: Final = 5  # schedules that are computed before others on the event loop have a turn
_AHEAD: Final = 5.0  # seconds before a tick at which it is computed
_LEASE: Final = 2.0  # seconds after its tick for which a schedule is left to one worker
_RELEASE_SECONDS: Final = 1.0  # for which a stop waits to give leases back
_BUFFERED_SECONDS: Final = 5.0  # between looks at buffered ticks, of which nobody was told
_AGAIN: Final = 0.1  # seconds after which they are tried again if a lock was in the way
_SWEEP_SECONDS: Final = 60.0
_SHORTEST: Final = 0.02  # seconds between two looks that find nothing to do
_LONGEST: Final = 2.0


class Scheduler(Service):
    """Fire the schedules of the database, whatever app they belong to."""

    duty = "schedules"

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._planned: list[Firing] = []  # of schedules that this worker was given
        self._given: dict[str, DueSchedule] = {}  # those that are not fired yet
        self._backfills: dict[UUID, DueBackfill] = {}  # the same of backfills
        self._taking: asyncio.Task[Any] | None = None  # the call that takes such leases
        self._ended: list[UUID] = []  # runs for whose ends ticks may wait
        self._buffered_at, self._swept_at = -math.inf, 0.0  # loop time
        self._passing = False
        self._fruitless = 0  # looks in a row that found nothing to do

    @property
    def busy(self) -> bool:
        """True if something is under way that continues without waiting."""
        return self._task is not None and (self._passing or self._woken.is_set())

    def notified(self, payload: str) -> None:
        """Look now: schedules have changed, or a run has ended for which a tick waits.

        An empty payload says that notifications may have been missed: look at all ticks that wait.
        """
        if not payload:
            self._buffered_at = -math.inf
        with contextlib.suppress(ValueError):  # it may be the name of a schedule or of an app
            self._ended.append(UUID(payload.partition(" ")[0]))
        self._woken.set()

    def wake(self) -> None:
        """Look now."""
        self._woken.set()

    async def stop(self) -> None:
        """Stop, and give back what this worker was given: others fire it in time. Idempotent."""
        await super().stop()
        if self._taking is not None:  # what it is given now, nobody would give back
            await asyncio.wait([self._taking], timeout=_RELEASE_SECONDS)
            self._taking.cancel()
        schedules, backfills = [*self._given.values()], [*self._backfills.values()]
        self.forget()
        if not schedules and not backfills:
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                self._notify(await self._store.release_schedules(schedules, backfills))
        except (DatabaseError, TimeoutError) as error:
            logger.info("schedules are fired by others a little later: %s", error)

    def forget(self) -> None:
        """Fire nothing of what this worker was given, and do not give it back at a stop."""
        self._given, self._backfills, self._planned = {}, {}, []

    async def run_once(self) -> None:
        """Fire everything that is due now, and start the buffered ticks that can start."""
        while (look := await self._look(0.0)) is None:
            pass
        self._next_due = min(filter(None, (look.at, look.backfill_at)), default=None)
        await self._start_buffered(None)
        await self._sweep()

    async def _run(self) -> None:
        while True:
            self._passing = True
            self._woken.clear()
            pause = min(self._interval, _BUFFERED_SECONDS)  # after an error: ticks may wait
            try:
                pause = await self._pass()
            except DatabaseError as error:
                OUTAGE.tell(logger, f"{self._duty} failed, and is tried again later", error)
            except Exception:
                logger.exception("%s failed", self._duty)
            self._passing = False
            await self._wait(pause)
            while not self._woken.is_set() and self._has_nothing_to_do:
                await self._wait(self._interval)

    @property
    def _has_nothing_to_do(self) -> bool:
        swept = asyncio.get_running_loop().time() - self._swept_at < _SWEEP_SECONDS
        return swept and not self._planned and self._is_ruled_out

    async def _pass(self) -> float:
        """Do what is due; return the seconds until the next look."""
        ended, self._ended = self._ended, []
        if ended:
            await self._start_buffered(ended)
        look = await self._look(_AHEAD)
        now = asyncio.get_running_loop().time()
        if look is None:
            return 0.0
        if look.has_buffered and now - self._buffered_at >= _BUFFERED_SECONDS:
            self._buffered_at = now
            await self._start_buffered(None)
        if now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            await self._sweep()
        pause = self._pause_until(look)
        return min(pause, _AGAIN) if self._ended else pause

    def _pause_until(self, look: NextLook) -> float:
        """Return the seconds until there may be something to do."""
        pause = _BUFFERED_SECONDS if look.has_buffered else self._interval
        moments = [at - round(_AHEAD * 1e6) for at in (look.at, look.backfill_at) if at is not None]
        if moments:
            until = (min(moments) - self._clock.now()) / 1e6
            if until <= 0:  # another transaction has what is due
                until = min(_LONGEST, _SHORTEST * 2**self._fruitless)
                self._fruitless = min(self._fruitless + 1, 10)
            else:
                self._fruitless = 0
            pause = min(pause, until)
        return pause

    async def _look(self, ahead: float) -> NextLook | None:
        """Compute and fire what is due; return when to look again, None for at once."""
        await self._fire_planned()
        look = await self._store.next_look()
        horizon = self._clock.now() + round(ahead * 1e6)
        found = False
        if look.at is not None and look.at <= horizon:
            found = await self._plan(ahead)
            await self._fire_planned()
        if look.backfill_at is not None and look.backfill_at <= self._clock.now():
            found = await self._backfill() or found
        return None if found else look

    async def _plan(self, ahead: float) -> bool:
        """Compute schedules that this worker is given; return True if there were some."""
        given = await self._take(self._due_schedules(ahead))
        for place, due in enumerate(given):
            if place % _BREATH == 0:
                await asyncio.sleep(0)
            firing = plan_firing(due, self._clock.now())
            if firing.error is not None:
                logger.warning("schedule %s cannot be computed: %s", due.name, firing.error)
            self._planned.append(firing)
        self._planned.sort(key=lambda firing: firing.position)
        return bool(given)

    async def _due_schedules(self, ahead: float) -> Sequence[DueSchedule]:
        given = await self._store.due_schedules(
            limit=_BATCH, ahead_seconds=ahead, lease_seconds=_LEASE
        )
        self._given |= {due.name: due for due in given}
        return given

    async def _due_backfills(self) -> Sequence[DueBackfill]:
        given = await self._store.due_backfills(lease_seconds=_LEASE)
        self._backfills |= {due.backfill_id: due for due in given}
        return given

    async def _take(self, call: Coroutine[Any, Any, Sequence[T]]) -> Sequence[T]:
        """Await a call that takes leases. A cancelled caller leaves it under way, for `stop`."""
        self._taking = asyncio.create_task(call)
        return await asyncio.shield(self._taking)

    async def _fire_planned(self) -> None:
        """Fire what has come due of that which was computed."""
        while True:
            now = self._clock.now()
            most = _BATCH * _AT_ONCE
            ready = [firing for firing in self._planned[:most] if firing.position <= now]
            if not ready:
                return
            del self._planned[: len(ready)]
            # The database works on one part while the answer to the other waits for its turn here.
            parts = [ready[place : place + _BATCH] for place in range(0, len(ready), _BATCH)]
            await asyncio.gather(*map(self._fire, parts))

    async def _fire(self, firings: Sequence[Firing]) -> None:
        """Move schedules on. If one of them cannot be moved, the others are."""
        try:
            fired = await self._store.fire_schedules(firings)
        except DatabaseUnavailable:
            raise
        except HoldfastError as error:
            if len(firings) == 1:
                await self._give_up(firings[0], error)
                return
            middle = len(firings) // 2
            await self._fire(firings[:middle])
            await self._fire(firings[middle:])
            return
        for firing in firings:
            self._given.pop(firing.name, None)
        self._notify(list(fired.notices))

    async def _give_up(self, firing: Firing, error: HoldfastError) -> None:
        """Leave a schedule that cannot be moved: to a later lease, or with its error."""
        if isinstance(error, TransientDatabaseError):  # another transaction is in the way
            logger.info("schedule %s is fired later: %s", firing.name, error)
        elif firing.error is None:
            logger.warning("schedule %s cannot be fired: %s", firing.name, error)
            failed = msgspec.structs.replace(firing, ticks=(), skipped=(), error=f"{error}"[:1000])
            await self._fire([failed])

    async def _backfill(self) -> bool:
        given = await self._take(self._due_backfills())
        for due in given:
            await self._fire_backfill(plan_backfill(due), due.schedule)
        return bool(given)

    async def _fire_backfill(self, firing: BackfillFiring, schedule: str) -> None:
        if firing.error is not None:
            logger.warning("a backfill of schedule %s has ended: %s", schedule, firing.error)
        try:
            _, notices = await self._store.fire_backfill(firing)
        except TransientDatabaseError as error:
            logger.info("schedule %s is backfilled later: %s", schedule, error)
            return
        self._backfills.pop(firing.backfill_id, None)
        self._notify(notices)

    async def _start_buffered(self, run_ids: Sequence[UUID] | None) -> None:
        try:
            while True:
                started, notices = await self._store.start_buffered(run_ids=run_ids, limit=_BATCH)
                self._notify(notices)
                if started < _BATCH and (run_ids is not None or not started):
                    return
        except TransientDatabaseError as error:
            self._ended += run_ids or ()
            logger.info("buffered ticks are started later: %s", error)

    async def _sweep(self) -> None:
        while await self._store.sweep_buckets(limit=_BATCH) == _BATCH:
            pass

    async def _wait(self, seconds: float) -> None:
        """Wait for `seconds`, for the first tick that was computed, or until woken."""
        alarm = None
        if self._planned:
            alarm = self._clock.call_at(self._planned[0].position, self._woken.set)
        try:
            await set_within(self._woken, seconds)
        finally:
            if alarm is not None:
                alarm.cancel()
