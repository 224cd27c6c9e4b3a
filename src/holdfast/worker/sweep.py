"""A sweep: a worker that does what is due within a limited time, and then ends.

It is for hosts without a long-lived process: cron, and functions. Times of a sweep:

```
begin            claims end             gives back      its time is over
  ├── claims, drives ──┼── steps may end ──┼── signs off ──┤
                       └──── the grace ────┘
```
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from holdfast.definitions.app import App
from holdfast.errors import ConfigurationError
from holdfast.events import STEP_ENDS, TIMER_FIRED
from holdfast.store.port import Store
from holdfast.types import (
    ActivitiesEnded,
    ActivityEnd,
    Claims,
    Committed,
    Finish,
    StepTaskEnd,
    StepTasksEnded,
    Taker,
    TurnCommit,
    Value,
)
from holdfast.values.composing import compose
from holdfast.values.durations import Duration, seconds
from holdfast.values.moments import maybe_datetime
from holdfast.values.waits import set_within
from holdfast.worker.claimer import Claimable
from holdfast.worker.options import WorkerOptions
from holdfast.worker.watchdog import Process
from holdfast.worker.worker import Worker

_LONGEST: Final = 86_000.0  # seconds
_SIGN_OFF_SECONDS: Final = 2.0  # of the end, to give back what is left; less in a short sweep
_GRACE_SECONDS: Final = 10.0  # by default, for steps that run when claiming ends; as above
_PART: Final = 0.2  # of the whole time: neither of the two is longer
# The database is told that the sweep ends so much later: clocks run apart, and a stop may be slow.
_LATE_SECONDS: Final = 10.0
_SOON_SECONDS: Final = 0.25  # what comes due so soon is waited for
_LOOK_SECONDS: Final = 0.002  # between two looks at what is under way
_LONGEST_LOOK: Final = 0.05


class SweepResult(Value, frozen=True, kw_only=True):
    """What a sweep did, and what remains.

    `runs` counts the runs that it worked on, `turns` how often one of them began or woke, `ended`
    those that ended. `steps`, `timers`, `activities` and `flow_steps` count ends that it recorded:
    of attempts at steps, activities and flows' steps, and of timers. `messages` counts those with
    which it called consumers. `interrupted` counts attempts
    and turns that were under way when the time was over: they begin again.

    `remaining` is True if something of the app is due now. `next_due` is when the next thing comes
    due, in UTC, None for never; a signal, a decision or a start may come earlier. `seconds` is how
    long the sweep took.
    """

    runs: int
    turns: int
    ended: int
    steps: int
    timers: int
    activities: int
    flow_steps: int
    messages: int
    interrupted: int
    remaining: bool
    next_due: datetime | None
    seconds: float


class SweepLimits(Value, frozen=True, kw_only=True):
    """How much a sweep does: `max_runs` different runs (None: any number), in `max_seconds`.

    `grace_seconds` before its end it starts nothing more, and running steps may end.
    """

    max_runs: int | None
    max_seconds: float
    grace_seconds: float

    @classmethod
    def read(
        cls, max_runs: int | None, max_duration: Duration, grace: Duration | None
    ) -> SweepLimits:
        """Check what a caller asks for. Raises ConfigurationError."""
        length = seconds(max_duration)
        if not 0 < length <= _LONGEST:
            raise ConfigurationError(
                f"max_duration must be more than 0 and at most {_LONGEST:g} s, not {length:g} s: "
                "a sweep ends; a worker works until it is stopped"
            )
        if max_runs is not None and (isinstance(max_runs, bool) or max_runs < 1):
            raise ConfigurationError(f"max_runs must be 1 or more, or None, not {max_runs!r}")
        most = length - min(_SIGN_OFF_SECONDS, _PART * length)
        waits = min(_GRACE_SECONDS, _PART * length) if grace is None else seconds(grace)
        if waits > most:
            raise ConfigurationError(
                f"a grace of {waits:g} s leaves no time of max_duration, {length:g} s"
            )
        return cls(max_runs=max_runs, max_seconds=length, grace_seconds=waits)

    @property
    def claiming_seconds(self) -> float:
        """For how long the sweep takes up work."""
        sign_off = min(_SIGN_OFF_SECONDS, _PART * self.max_seconds)
        return self.max_seconds - sign_off - self.grace_seconds


class Sweep(Worker):
    """A worker that does what is due, and ends. Call `run` once."""

    _clean_up_seconds = 1.0

    def __init__(
        self,
        app: App,
        store: Store,
        limits: SweepLimits,
        options: WorkerOptions | None = None,
        *,
        heartbeat_store: Callable[[], Store] | None = None,
        origin: str | None = None,
        process: Process | None = None,
    ) -> None:
        self._limits = limits
        self._tally = Tally(store)
        self._over = asyncio.Event()
        self._claims_end = self._maintained = 0.0  # on the event loop's clock
        super().__init__(
            app,
            self._tally.store,
            options,
            heartbeat_store=heartbeat_store,
            origin=origin,
            process=process,
        )
        self._workload.mark_interrupted()

    def _limit_claims(self, claimable: Claimable | None) -> Claimable | None:
        """Claim no more once tasks of `max_runs` runs were claimed."""
        most = self._limits.max_runs
        if most is None:
            return claimable

        def limited(room: int, freed: Callable[[], None]) -> tuple[int, Sequence[str]]:
            left = most - len(self._tally.runs)
            if left <= 0:
                return 0, ()
            count, handlers = (
                (room, self.info.handlers) if claimable is None else claimable(room, freed)
            )
            return min(count, left), handlers

        return limited

    async def _enter(self) -> None:
        length = self._limits.max_seconds + _LATE_SECONDS
        await self._store.begin_sweep(self.info, seconds=length)
        await super()._enter()

    async def _start_services(self) -> None:
        """Do each duty once, before anything is claimed: a killed sweep is removed by that."""
        self._maintained = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._claims_end):
                for service in self._duties:
                    await service.attempt()

    def end_early(self) -> None:
        """Let it claim no more, as at the end of its time; a second call ends the grace period.

        Safe in a handler of a signal on the event loop.
        """
        if self._over.is_set():
            self.end_grace()
        self._over.set()

    async def run(self) -> SweepResult:
        """Do what is due, within the limits; give back the rest, sign off, and say what was done.

        Raises what `Worker.start` raises.
        """
        loop, limits = asyncio.get_running_loop(), self._limits
        began = loop.time()
        self._claims_end = began + limits.claiming_seconds
        if self._watchdog is not None:
            self._watchdog.end_within(limits.max_seconds)
        try:
            await self.start()
            await self._consumers.start()
            await self._work()
            left = self._claims_end + limits.grace_seconds - loop.time()
            await self.stop(min(max(left, 0.0), limits.grace_seconds))
        finally:
            await self.stop(0)
        now, next_due_at = await self._store.next_due(
            self.worker_id, self.info.queues, self.info.handlers
        )
        next_message_at = await self._consumers.next_due_at()
        moments = [next_due_at, next_message_at, *(service.next_due for service in self._duties)]
        soonest = min((at for at in moments if at is not None), default=None)
        return self._result(now, soonest, loop.time() - began)

    def _result(self, now: int, next_due_at: int | None, took: float) -> SweepResult:
        tally = self._tally
        return compose(
            SweepResult,
            tally,
            runs=len(tally.runs),
            messages=self._consumers.ended,
            interrupted=self._workload.interrupted,
            remaining=next_due_at is not None and next_due_at <= now,
            next_due=maybe_datetime(next_due_at),
            seconds=round(took, 3),
        )

    # While it works

    async def _work(self) -> None:
        """Return when nothing is due, when the limit of runs is reached, or when claims end."""
        loop, tally = asyncio.get_running_loop(), self._tally
        pause, confirmed = _LOOK_SECONDS, (-1, 0)
        while not self._over.is_set() and (left := self._claims_end - loop.time()) > 0:
            if loop.time() - self._maintained >= self.options.maintenance_seconds:
                await self._start_services()
            if self.busy or self.active or not self._claimer.idle:
                pause = min(pause * 1.5, _LONGEST_LOOK)
            elif self._is_full:
                return
            elif confirmed != (done := (tally.tasks, self._consumers.ended)):
                # Since the last looks others may have woken runs, or sent messages.
                confirmed, pause = done, _LOOK_SECONDS
                self._claimer.wake()
                self._consumers.wake()
            elif self._due_in >= _SOON_SECONDS:
                return
            else:
                pause = max(self._due_in, _LOOK_SECONDS)
            await set_within(self._over, min(pause, left))

    @property
    def _is_full(self) -> bool:
        most = self._limits.max_runs
        return most is not None and len(self._tally.runs) >= most

    @property
    def _due_in(self) -> float:
        due_in = self._claimer.due_in
        return math.inf if due_in is None else due_in


class Tally:
    """Pass every call on to a store, and count what was claimed and what became durable.

    `runs` has the ids of the runs of which a task was claimed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.runs: set[UUID] = set()
        self.tasks = self.turns = self.ended = self.steps = self.timers = 0
        self.activities = self.flow_steps = 0

    @property
    def store(self) -> Store:
        """The store that counts."""
        return cast("Store", self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Pass on what is not counted."""
            return getattr(self._store, name)

    async def claim_tasks(self, *arguments: Any, **options: Any) -> Claims:
        claims = await self._store.claim_tasks(*arguments, **options)
        self.runs.update(task.run_id for task in claims.tasks)
        self.tasks += len(claims.tasks)
        self.turns += sum(task.kind == "workflow" for task in claims.tasks)
        return claims

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        committed = await self._store.commit(worker_id, token, turns)
        for part in turns:
            if part.run_id not in committed.refused:
                self.ended += isinstance(part.then, Finish)
                self.steps += sum(event.type in STEP_ENDS for event in part.events)
                self.timers += sum(event.type == TIMER_FIRED for event in part.events)
        return committed

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        ended = await self._store.end_activities(worker_id, ends)
        self.activities += sum(outcome != "lost" for outcome in ended.outcomes)
        return ended

    async def end_step_tasks(
        self,
        worker_id: str,
        ends: Sequence[StepTaskEnd],
        taker: Taker | None = None,
        *,
        patience: int = 1,
    ) -> StepTasksEnded:
        ended = await self._store.end_step_tasks(worker_id, ends, taker, patience=patience)
        self.flow_steps += sum(outcome != "lost" for outcome in ended.outcomes)
        self.tasks += len(ended.tasks)
        self.runs.update(task.run_id for task in ended.tasks)
        return ended
