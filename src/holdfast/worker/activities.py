"""The activities that this worker holds: from a claimed task to the report of its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias
from uuid import UUID

from holdfast.codec import describe, encode
from holdfast.definitions.middleware import Layer
from holdfast.definitions.workflows import AnyActivity
from holdfast.errors import WorkerLost
from holdfast.names import split_name
from holdfast.types import ActivityEnd, ActivityOutcome, ClaimedTask, Lease, Release
from holdfast.worker.activity_attempts import ActivityExecution, Order, read_order
from holdfast.worker.attempts import Launcher
from holdfast.worker.clock import Clock
from holdfast.worker.failure_log import log_failed_activity
from holdfast.worker.reporter import Reporter

logger = logging.getLogger("holdfast.run")

_Place: TypeAlias = "tuple[UUID, str]"


class ActivityExecutor:
    """Execute claimed activities, and keep their leases until their ends are recorded."""

    def __init__(
        self,
        activities: Mapping[str, AnyActivity],
        layers: list[Layer],
        clock: Clock,
        launcher: Launcher,
        reporter: Reporter,
        *,
        release: Callable[[Release], None],
        capacity_changed: Callable[[], None],
    ) -> None:
        self._activities, self._layers, self._clock = activities, layers, clock
        self._launcher, self._reporter = launcher, reporter
        self._release, self._capacity_changed = release, capacity_changed
        self._running: dict[_Place, ActivityExecution] = {}
        self._reporting: dict[_Place, int] = {}  # lease numbers of those that have ended
        self._draining = self._hurried = False
        self._moved = asyncio.Event()  # an activity was let go of, or the grace period is over

    @property
    def held(self) -> int:
        """How many activities this worker holds."""
        return len(self._running) + len(self._reporting)

    @property
    def executing(self) -> bool:
        """Say whether an activity runs now."""
        return bool(self._running)

    @property
    def busy(self) -> bool:
        """Say whether an activity runs, or its end is being reported."""
        return self.held > 0

    # Claimed tasks

    def accept(self, tasks: Sequence[ClaimedTask]) -> None:
        """Execute activities just claimed."""
        for task in tasks:
            if self._draining:
                self._release(Release(task.run_id, task.key, task.lease_no))
            else:
                self._start(task)

    def _start(self, task: ClaimedTask) -> None:
        place = (task.run_id, task.key)
        stale = self._running.pop(place, None)
        if stale is not None:  # its lease ran out, and this worker has the next attempt as well
            stale.cancel()
        try:
            order, activity = (
                read_order(task.payload or ""),
                self._activities[split_name(task.name)[1]],
            )
        except Exception as error:
            logger.exception("activity %s of run %s cannot be begun", task.key, task.run_id)
            self._refuse(task, error)
            return
        if not order.has_attempt(task.attempts):
            self._refuse(task, _lost(task, order))
            return
        execution = ActivityExecution(activity, task, order, self._clock.now(), self._ended)
        self._running[place] = execution
        self._launcher.launch(execution, order.arguments, self._layers)
        execution.watch()

    def _refuse(self, task: ClaimedTask, error: Exception) -> None:
        """Report a failure without an attempt."""
        info = encode(describe(error))
        self._report(
            ActivityEnd(
                run_id=task.run_id,
                key=task.key,
                lease_no=task.lease_no,
                error=info,
                retryable=False,
                started_at=self._clock.now(),
            )
        )

    def _ended(self, execution: ActivityExecution) -> None:
        task = execution.task
        place = (task.run_id, task.key)
        if self._running.get(place) is execution:
            del self._running[place]
            if (error := execution.error) is not None:
                context, retryable = execution.context, execution.retryable
                log_failed_activity(
                    context.run_id,
                    context.name,
                    context.key,
                    context.attempt,
                    error,
                    retryable=retryable,
                )
            self._report(execution.end())

    def _report(self, end: ActivityEnd) -> None:
        self._reporting[end.run_id, end.key] = end.lease_no
        self._reporter.submit(end, partial(self._reported, end))

    def _reported(self, end: ActivityEnd, outcome: ActivityOutcome) -> None:
        if outcome == "lost":
            logger.warning(
                "activity %s of run %s ended too late: its lease was another's, or nobody waited",
                end.key,
                end.run_id,
            )
        place = (end.run_id, end.key)
        if self._reporting.get(place) == end.lease_no:
            del self._reporting[place]
        self._left()

    def _left(self) -> None:
        self._moved.set()
        self._capacity_changed()

    # Heartbeat and news

    def leases(self) -> list[Lease]:
        """Return the leases held now, without those of activities that are silent for too long.

        Safe to call from another thread.
        """
        running = list(self._running.values())
        leases = [execution.lease() for execution in running if not execution.silent]
        ending = list(self._reporting.items())
        return leases + [Lease(run_id, key, number, 0) for (run_id, key), number in ending]

    def known(self, leases: Sequence[Lease]) -> None:
        """Note what activities said that the database knows now. Safe from another thread."""
        for lease in leases:
            execution = self._running.get((lease.run_id, lease.key))
            if execution is not None and lease.details is not None:
                execution.known(lease.details)

    def lose(self, run_id: UUID, key: str, lease_no: int) -> None:
        """Let go of an activity whose lease is another's, or which nobody wants any more."""
        execution = self._running.get((run_id, key))
        if execution is not None and execution.task.lease_no == lease_no:
            logger.warning("activity %s of run %s: its lease was lost", key, run_id)
            del self._running[run_id, key]
            execution.cancel()
            self._left()

    def call_off(self, run_id: UUID, key: str) -> None:
        """Tell an activity that its run waits no more."""
        execution = self._running.get((run_id, key))
        if execution is not None:
            execution.call_off()

    # Draining

    async def drain(
        self, grace_seconds: float, save: Callable[[list[Lease]], Awaitable[None]]
    ) -> list[Release]:
        """Let running activities end within the grace period; return what is to be released then.

        `save` is given the leases of those that said something that the database does not know.
        """
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                while self._running and not self._hurried:
                    self._moved.clear()
                    await self._moved.wait()
        left, self._running = self._running, {}
        leases = [execution.lease() for execution in left.values()]
        for execution in left.values():
            execution.cancel()
        unsaved = [lease for lease in leases if lease.details is not None]
        if unsaved:
            await save(unsaved)
        return [Release(lease.run_id, lease.key, lease.lease_no) for lease in leases]

    def hurry(self) -> None:
        """End the grace period now."""
        self._hurried = True
        self._moved.set()


def _lost(task: ClaimedTask, order: Order) -> WorkerLost:
    attempts = order.retry.attempts
    return WorkerLost(
        f"attempt {attempts} of {attempts} of activity {task.name} came to no end: its worker was "
        "lost, or nobody completed it in time"
    )
