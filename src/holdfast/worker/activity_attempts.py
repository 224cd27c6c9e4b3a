"""One attempt of an activity, with the limits of its call, as the run's log has them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from holdfast.codec import encode
from holdfast.definitions.activities import ActivityContext, CompletedLater
from holdfast.definitions.workflows import AnyActivity
from holdfast.retry import Growth, Retry
from holdfast.types import ActivityEnd, ClaimedTask, Lease
from holdfast.worker.attempts import Execution
from holdfast.worker.clock import Cancellable


class Policy(msgspec.Struct, frozen=True):
    """The retry policy of a call, without jitter: the database draws that."""

    attempts: int | None = None
    backoff: Growth = "exp"
    base: float = 1.0
    max: float = 60.0
    factor: float = 2.0

    def pause_seconds(self, attempt: int) -> float:
        """Return the usual pause after `attempt` failed attempts."""
        policy = Retry(backoff=self.backoff, base=self.base, max=self.max, factor=self.factor)
        return policy.delay_seconds(attempt, lambda: 0.5)


class ScheduledCall(msgspec.Struct, frozen=True):
    """The call of an activity, as the log has it."""

    input: msgspec.Raw
    retry: Policy
    start_to_close: float | None = None
    heartbeat_timeout: float | None = None

    @property
    def arguments(self) -> str:
        """The arguments as JSON text."""
        return bytes(self.input).decode()

    def has_attempt(self, number: int) -> bool:
        """Return True if the policy allows an attempt of this number."""
        return self.retry.attempts is None or number <= self.retry.attempts


read_call = msgspec.json.Decoder(ScheduledCall).decode


class ActivityExecution(Execution[ActivityContext]):
    """One attempt under way. After the report `activity_end` tells how it ended."""

    __slots__ = (
        "_cancel_requested",
        "_deferred",
        "_stopped",
        "_watch",
        "call",
        "silence_seconds",
        "task",
    )

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
        self._cancel_requested = self._deferred = False
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

    def fail(self, error: BaseException) -> None:
        """Report a failure, or that another program will end the activity."""
        if isinstance(error, CompletedLater) and not self.ended:
            self._deferred = True
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
        )

    @property
    def lease(self) -> Lease:
        """The lease, with heartbeat details that the database does not have yet."""
        task = self.task
        return Lease(task.run_id, task.key, task.lease_no, 0, self.context.unsent)
