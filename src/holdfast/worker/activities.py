"""The activities of one worker: from a claimed task, through its attempt, to the report of its end.

The limits of an attempt are those of the call, as the run's log has them, not those of the
definition in this process. The database decides if a failed attempt is followed by another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.codec import check_open, describe, encode
from holdfast.definitions.activities import ActivityContext, CompletedLater
from holdfast.definitions.batches import BatchActivity
from holdfast.definitions.middleware import Layer
from holdfast.definitions.workflows import AnyActivity
from holdfast.errors import PayloadLocked, WorkerLost
from holdfast.retry import RecordedRetry
from holdfast.store.shared_calls import BRIEF_MILLIS
from holdfast.types import ActivityEnd, ActivityOutcome, ClaimedTask, Lease, Release
from holdfast.values.durations import length_of
from holdfast.values.loggers import get_logger
from holdfast.worker.attempts import Launcher
from holdfast.worker.claimer import Room
from holdfast.worker.clock import Cancellable, Clock
from holdfast.worker.failure_log import log_failed_activity
from holdfast.worker.fitting import UNFIT
from holdfast.worker.recording import repeated
from holdfast.worker.reporting import EndReporter, OpenAttempts, TaskExecution

logger = get_logger("holdfast.run")


class ScheduledCall(msgspec.Struct, frozen=True):
    """The call of an activity. `misfit` is True if its input never fitted its code.

    `run_key` is the key that the code of the caller sees, if its run is a fork, which has none.
    """

    input: msgspec.Raw
    retry: RecordedRetry
    start_to_close: float | None = None
    heartbeat_timeout: float | None = None
    misfit: bool = False
    run_key: str | None = None

    @property
    def arguments(self) -> str:
        """The arguments as JSON text."""
        return bytes(self.input).decode()

    def has_attempt(self, number: int) -> bool:
        """Return True if the policy allows an attempt of this number."""
        return self.retry.attempts is None or number <= self.retry.attempts


read_call = msgspec.json.Decoder(ScheduledCall).decode


class ActivityExecution(TaskExecution[ActivityContext]):
    """One attempt under way. After the report `activity_end` tells how it ended."""

    __slots__ = ("_cancel_requested", "_stopped", "_watch", "call", "held", "silence_seconds")

    def __init__(
        self,
        activity: AnyActivity,
        task: ClaimedTask,
        call: ScheduledCall,
        started_at: int,
        report: Callable[[ActivityExecution], None],
    ) -> None:
        context = ActivityContext(task, is_async=activity.is_async)
        super().__init__(activity, context, started_at, call.start_to_close, report)
        self.task, self.call, self.silence_seconds = task, call, call.heartbeat_timeout
        self.lease_no, self.headers = task.lease_no, task.headers
        self.held: str | None = None  # why it is given back, and nothing is reported
        self._cancel_requested = False
        self._stopped: BaseException | None = (
            None  # the error to report if its cancellation ends it
        )
        self._watch: Cancellable | None = None

    # Silence

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the clocks of a thread that begins now."""
        self.context.beaten_at = time.monotonic()
        super().begin(loop)

    def watch(self) -> None:
        """End the attempt if it has sent no heartbeat for too long; else look again later."""
        if self.silence_seconds is not None and not self.ended:
            left = self.silence_seconds - self._silent_seconds
            if left <= 0:
                self._fail_silent(TimeoutError(f"no heartbeat for {self.silence_seconds:g} s"))
            else:
                self._watch = asyncio.get_running_loop().call_later(left, self.watch)

    @property
    def silent(self) -> bool:
        """True if the attempt has sent no heartbeat for too long. Safe from any thread."""
        limit = self.silence_seconds
        return limit is not None and not self.ended and self._silent_seconds > limit

    @property
    def _silent_seconds(self) -> float:
        waits_for_a_thread = not (self.function.is_async or self.begun)
        return 0.0 if waits_for_a_thread else time.monotonic() - self.context.beaten_at

    def _fail_silent(self, error: TimeoutError) -> None:
        if self.function.is_async and self.future is not None:
            self.timed_out = True
            self._stopped = error
            self.context.cancel()
            self.future.cancel()
        else:
            self.expire(str(error))

    # Ends

    def request_cancel(self) -> None:
        """Ask the attempt to stop: its run no longer waits for it. Its end is still reported.

        Idempotent.
        """
        if self._cancel_requested or self.ended:
            return
        self._cancel_requested = True
        self._stopped = asyncio.CancelledError("the activity was cancelled")
        self.context.cancel()
        if self.future is not None and (self.function.is_async or not self.begun):
            self.future.cancel()

    def refuse(self, error: BaseException) -> None:
        """Hold a call whose arguments fitted when it was made: a roll-back heals it. Else fail."""
        if isinstance(error, Exception) and not (self.call.misfit or self.ended):
            self.held = f"its arguments do not fit this code: {error}; {UNFIT}"
            self._end()
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Report a failure, or that another program will end the activity."""
        if isinstance(error, CompletedLater) and not self.ended:
            self._end()
            return
        if isinstance(error, asyncio.CancelledError) and self._stopped is not None:
            error = self._stopped
        super().fail(error)

    def cancel(self) -> asyncio.Future[object] | None:
        """Ask it to stop, and report nothing: the lease is lost or given back."""
        self._unwatch()
        return super().cancel()

    def _end(self) -> None:
        self._unwatch()
        super()._end()

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    @property
    def activity_end(self) -> ActivityEnd:
        """How the attempt ended, as it is reported to the database."""
        task = self.task
        return ActivityEnd(
            run_id=task.run_id,
            key=task.key,
            lease_no=task.lease_no,
            result=self.result,
            error=None if self.error is None else encode(self.error),
            retryable=self.retryable and not self._cancel_requested,
            timed_out=self.timed_out,
            started_at=self.started_at,
            details=self.context.details,
            delay_seconds=self.delay_seconds,
            units=self.context.used_units,
        )

    @property
    def lease(self) -> Lease:
        """The lease, with heartbeat details that the database does not have yet."""
        task = self.task
        return Lease(task.run_id, task.key, task.lease_no, 0, self.context.unsent)


class Reporter(EndReporter[ActivityEnd, ActivityOutcome]):
    """Reports ends of activities."""

    what = "activities"

    async def _send(self, ends: list[ActivityEnd]) -> Sequence[ActivityOutcome]:
        with self._lending(len(ends)):
            ended = await repeated(
                lambda: self._store.end_activities(self._worker_id, ends),
                self._clock,
                f"reporting {len(ends)} {self.what}",
                BRIEF_MILLIS,
            )
        if ended.notices:
            self._notify(ended.notices)
        return ended.outcomes

    def _failed(self, end: ActivityEnd, error: str) -> ActivityEnd:
        return replace(end, result=None, error=error, retryable=False, details=None)


# Makes an attempt that is executed in a batch; returns it, and what puts it into the batch.
Batching: TypeAlias = Callable[
    [BatchActivity[..., Any], ClaimedTask, ScheduledCall, int, Callable[[ActivityExecution], None]],
    tuple[ActivityExecution, Callable[[], None]],
]


class Activities(OpenAttempts[ActivityExecution]):
    """The activities of a worker. `batching` takes the calls of those executed in batches."""

    kind, again_seconds = "activity", 30.0

    def __init__(
        self,
        activities: Mapping[str, AnyActivity],
        layers: list[Layer],
        clock: Clock,
        launcher: Launcher,
        reporter: Reporter,
        *,
        batching: Batching,
        release: Callable[[Release], None],
        room: Room,
    ) -> None:
        super().__init__(room, release, clock)
        self._activities = {each.full_name: each for each in activities.values()}
        self._layers, self._launcher, self._reporter = layers, launcher, reporter
        self._batching = batching

    # Claimed tasks

    def _start(self, task: ClaimedTask) -> None:
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
        if call.run_key is not None:
            task = replace(task, run_key=call.run_key)
        now = self._clock.now()
        if isinstance(activity, BatchActivity):
            element, fill = self._batching(activity, task, call, now, self._ended)
            self._begin(element)
            self._launcher.trace(element)
            fill()
            return
        execution = ActivityExecution(activity, task, call, now, self._ended)
        self._begin(execution)
        self._launcher.launch(execution, call.arguments, self._layers)
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
        if not self._end(execution):
            return
        if execution.held is None:
            self._report(execution.activity_end, execution)
        else:
            self._leave(execution.task, execution.held, quotes=True)

    def _report(self, end: ActivityEnd, execution: ActivityExecution | None = None) -> None:
        self._report_end(self._reporter, end, partial(self._reported, end, execution))

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

    # Messages from other parts

    def renewed(self, leases: Sequence[Lease]) -> None:
        """Remember which heartbeat details the database has now. Safe from any thread."""
        for lease in leases:
            execution = self._find(lease.run_id, lease.key)
            if execution is not None and lease.details is not None:
                execution.context.mark_sent(lease.details)

    def request_cancel(self, run_id: UUID, key: str) -> None:
        """Ask an activity to stop, because its run no longer waits for it."""
        execution = self._find(run_id, key)
        if execution is not None:
            execution.request_cancel()

    async def drain(
        self, grace_seconds: float, save: Callable[[list[Lease]], Awaitable[None]]
    ) -> list[Release]:
        """Let running activities end within the grace period; return the releases of the rest.

        `save` is called with leases that have details which the database does not have yet.
        """
        leases = await self._stop_all(grace_seconds)
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
        return f"next attempt in about {length_of(pause)}"
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
