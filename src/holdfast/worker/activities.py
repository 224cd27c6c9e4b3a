"""The activities of one worker: from a claimed task, through its attempt, to the report of its end.

The limits of an attempt are those of the call, as the run's log has them, not those of the
definition in this process. The database decides if a failed attempt is followed by another.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from uuid import UUID

from holdfast.codec import check_open, describe, encode
from holdfast.definitions.batches import BatchActivity
from holdfast.definitions.middleware import Layer
from holdfast.definitions.workflows import AnyActivity
from holdfast.errors import PayloadLocked, WorkerLost
from holdfast.types import ActivityEnd, ActivityOutcome, ClaimedTask, Lease, Release
from holdfast.worker.activity_attempts import ActivityExecution, ScheduledCall, read_call
from holdfast.worker.attempts import Launcher
from holdfast.worker.batches import BatchElement, Batches
from holdfast.worker.claimer import Room
from holdfast.worker.clock import Clock
from holdfast.worker.failure_log import log_failed_activity
from holdfast.worker.open_attempts import OpenAttempts
from holdfast.worker.recording import Reporter

logger = logging.getLogger("holdfast.run")

_AGAIN_SECONDS = 30.0  # before a task that this program cannot read is claimed again


class Activities:
    """Execute claimed activities, and keep their leases until their ends are recorded.

    `release` gives one lease back. `room` counts the activities held here.
    """

    def __init__(
        self,
        activities: Mapping[str, AnyActivity],
        layers: list[Layer],
        clock: Clock,
        launcher: Launcher,
        reporter: Reporter,
        *,
        release: Callable[[Release], None],
        room: Room,
    ) -> None:
        self._activities = {each.full_name: each for each in activities.values()}
        self._layers, self._clock = layers, clock
        self._launcher, self._reporter = launcher, reporter
        self._batches = Batches(launcher, layers, clock)
        self._release = release
        self._open = OpenAttempts[ActivityExecution]("activity", room)
        self.leases, self.lose = self._open.leases, self._open.lose
        self.end_grace = self._open.end_grace

    @property
    def executing(self) -> bool:
        """True if an activity runs."""
        return self._open.executing

    @property
    def busy(self) -> bool:
        """True if an activity runs, or its end is being reported."""
        return self._open.busy

    # Claimed tasks

    def accept(self, tasks: Sequence[ClaimedTask]) -> None:
        """Execute claimed activities."""
        for task in tasks:
            if self._open.draining:
                self._release(Release(task.run_id, task.key, task.lease_no))
            else:
                self._start(task)

    def _start(self, task: ClaimedTask) -> None:
        self._open.stop_stale(task)
        try:
            check_open((task.payload, task.heartbeat))
        except PayloadLocked as error:
            self._leave(task, str(error))
            return
        try:
            call, activity = read_call(task.payload or ""), self._activities[task.name]
        except Exception as error:
            logger.exception("activity %s of run %s cannot be begun", task.key, task.run_id)
            self._refuse(task, error)
            return
        if not call.has_attempt(task.attempts):
            self._refuse(task, _lost(task, call))
            return
        now = self._clock.now()
        if isinstance(activity, BatchActivity):
            element = BatchElement(activity, task, call, now, self._ended)
            self._open.begin(element)
            self._batches.add(element)
            return
        execution = ActivityExecution(activity, task, call, now, self._ended)
        self._open.begin(execution)
        self._launcher.launch(execution, call.arguments, self._layers)
        execution.watch()

    def _leave(self, task: ClaimedTask, reason: str) -> None:
        """Give back a task that this program cannot read: another one may have the key."""
        logger.error("activity %s of run %s cannot be begun: %s", task.key, task.run_id, reason)
        again = self._clock.now() + int(_AGAIN_SECONDS * 1e6)
        self._release(Release(task.run_id, task.key, task.lease_no, again, reason))

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
        if self._open.end(execution):
            self._report(execution.activity_end, execution)

    def _report(self, end: ActivityEnd, execution: ActivityExecution | None = None) -> None:
        self._open.keep_lease(end.run_id, end.key, end.lease_no)
        self._reporter.submit(end, partial(self._reported, end, execution))

    def _reported(
        self, end: ActivityEnd, execution: ActivityExecution | None, outcome: ActivityOutcome
    ) -> None:
        if execution is not None and execution.error is not None:
            _warn(execution, outcome)
        if outcome == "lost":
            logger.warning(
                "activity %s of run %s ended too late: its lease was lost, or its run no longer "
                "waited for it",
                end.key,
                end.run_id,
            )
        self._open.forget_lease(end.run_id, end.key, end.lease_no)

    # Messages from other parts

    def renewed(self, leases: Sequence[Lease]) -> None:
        """Remember which heartbeat details the database has now. Safe from any thread."""
        for lease in leases:
            execution = self._open.find(lease.run_id, lease.key)
            if execution is not None and lease.details is not None:
                execution.context.mark_sent(lease.details)

    def request_cancel(self, run_id: UUID, key: str) -> None:
        """Ask an activity to stop, because its run no longer waits for it."""
        execution = self._open.find(run_id, key)
        if execution is not None:
            execution.request_cancel()

    async def drain(
        self, grace_seconds: float, save: Callable[[list[Lease]], Awaitable[None]]
    ) -> list[Release]:
        """Let running activities end within the grace period; return the releases of the rest.

        `save` is called with leases that have details which the database does not have yet.
        """
        leases = await self._open.drain(grace_seconds)
        unsaved = [lease for lease in leases if lease.details is not None]
        if unsaved:
            await save(unsaved)
        return [Release(lease.run_id, lease.key, lease.lease_no) for lease in leases]


def _warn(execution: ActivityExecution, outcome: ActivityOutcome) -> None:
    """Log a failed attempt, with what follows it."""
    context, error = execution.context, execution.error
    assert error is not None
    log_failed_activity(
        context.run_id,
        context.name,
        context.key,
        context.attempt,
        error,
        _what_follows(execution, outcome),
    )


def _what_follows(execution: ActivityExecution, outcome: ActivityOutcome) -> str | None:
    """Return in words what the database does after a failed attempt, None if that is not known."""
    call, attempt = execution.call, execution.context.attempt
    if outcome == "retried":
        asked = execution.delay_seconds
        pause = call.retry.pause_seconds(attempt) if asked is None else asked
        return f"next attempt in about {pause:.3g} s"
    if outcome != "recorded":
        return None
    if not execution.retryable:
        return "it is not retried"
    if not call.has_attempt(attempt + 1):
        return "no attempts are left"
    return "no time is left for another attempt"


def _lost(task: ClaimedTask, call: ScheduledCall) -> WorkerLost:
    attempts = call.retry.attempts
    return WorkerLost(
        f"attempt {attempts} of {attempts} of activity {task.name} did not end: its worker was "
        "lost, or it was not completed from outside in time"
    )
