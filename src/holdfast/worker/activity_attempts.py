"""One attempt of an activity: what it shares with steps, and how it may be stopped and end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from holdfast.codec import encode
from holdfast.definitions.attempts import ActivityContext, CompletedLater
from holdfast.definitions.workflows import AnyActivity
from holdfast.types import ActivityEnd, ClaimedTask, Lease
from holdfast.worker.attempts import Execution
from holdfast.worker.clock import Cancellable


class Policy(msgspec.Struct, frozen=True):
    """What of the retry policy concerns a worker; the rest is the database's."""

    attempts: int | None = None


class Order(msgspec.Struct, frozen=True):
    """What the run ordered: the limits are those of its call, not of the definition here."""

    input: msgspec.Raw
    retry: Policy
    start_to_close: float | None = None
    heartbeat_timeout: float | None = None

    @property
    def arguments(self) -> str:
        """The arguments as JSON text."""
        return bytes(self.input).decode()

    def has_attempt(self, number: int) -> bool:
        """Say whether the policy grants an attempt of this number."""
        return self.retry.attempts is None or number <= self.retry.attempts


read_order = msgspec.json.Decoder(Order).decode


class ActivityExecution(Execution[ActivityContext]):
    """One attempt under way. After the report `end` says what came of it."""

    __slots__ = (
        "_called_off",
        "_deferred",
        "_stopped",
        "_watch",
        "silence_seconds",
        "task",
    )

    def __init__(
        self,
        activity: AnyActivity,
        task: ClaimedTask,
        order: Order,
        started_at: int,
        report: Callable[[ActivityExecution], None],
    ) -> None:
        context = ActivityContext(task, is_async=activity.is_async)
        super().__init__(activity, context, started_at, order.start_to_close, report)
        self.task, self.silence_seconds = task, order.heartbeat_timeout
        self._called_off = self._deferred = False
        self._stopped: BaseException | None = None  # why it was cancelled, if it ends of that
        self._watch: Cancellable | None = None

    # Silence

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the clocks of a thread that begins now."""
        self.context.beaten_at = time.monotonic()
        super().begin(loop)

    def watch(self) -> None:
        """End the attempt when it is silent for too long."""
        if self.silence_seconds is not None and not self.ended:
            left = self.silence_seconds - self._silent_seconds
            if left <= 0:
                self._silence(TimeoutError(f"no heartbeat for {self.silence_seconds:g} s"))
            else:
                self._watch = asyncio.get_running_loop().call_later(left, self.watch)

    @property
    def silent(self) -> bool:
        """Whether it is silent for longer than it may be. Safe from any thread."""
        limit = self.silence_seconds
        return limit is not None and not self.ended and self._silent_seconds > limit

    @property
    def _silent_seconds(self) -> float:
        waits_for_a_thread = not (self.function.is_async or self.begun)
        return 0.0 if waits_for_a_thread else time.monotonic() - self.context.beaten_at

    def _silence(self, error: TimeoutError) -> None:
        if self.function.is_async and self.future is not None:
            self.timed_out = True
            self._stopped = error
            self.context.cancel()
            self.future.cancel()
        else:
            self.expire(str(error))

    # Ends

    def call_off(self) -> None:
        """Tell the attempt that its run waits no more; its end is still reported. Idempotent."""
        if self._called_off or self.ended:
            return
        self._called_off = True
        self._stopped = asyncio.CancelledError("the activity was cancelled")
        self.context.cancel()
        if self.future is not None and (self.function.is_async or not self.begun):
            self.future.cancel()

    def fail(self, error: BaseException) -> None:
        """Report a failure, or that the end comes from outside."""
        if isinstance(error, CompletedLater) and not self.ended:
            self._deferred = True
            self._settle()
            return
        if isinstance(error, asyncio.CancelledError) and self._stopped is not None:
            error = self._stopped
        super().fail(error)

    def cancel(self) -> asyncio.Future[object] | None:
        """Ask it to stop, and report nothing: the lease is another's, or is given back."""
        self._unwatch()
        return super().cancel()

    def _settle(self) -> None:
        self._unwatch()
        super()._settle()

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def end(self) -> ActivityEnd:
        """Return what came of the attempt, to be reported."""
        task = self.task
        return ActivityEnd(
            run_id=task.run_id,
            key=task.key,
            lease_no=task.lease_no,
            result=self.result,
            error=None if self.error is None else encode(self.error),
            retryable=self.retryable and not self._called_off,
            timed_out=self.timed_out,
            started_at=self.started_at,
            details=self.context.details,
            delay_seconds=self.delay,
        )

    def lease(self) -> Lease:
        """Return the lease, with what the attempt said that the database does not know yet."""
        task = self.task
        return Lease(task.run_id, task.key, task.lease_no, 0, self.context.unsent)

    def known(self, details: str) -> None:
        """Note that the database knows what the attempt said."""
        self.context.mark_sent(details)
