"""An attempt of a transactional step: how it ends, and how it waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar, cast

from holdfast.definitions.steps import StepContext
from holdfast.definitions.transactions import Transaction
from holdfast.errors import ConfigurationError
from holdfast.events import read_step_completed
from holdfast.store.port.transactions import RunNotHeld
from holdfast.types import Event
from holdfast.values.loggers import get_logger
from holdfast.worker.attempts import Execution, over

T = TypeVar("T")

logger = get_logger("holdfast.run")

_LOOK_SECONDS: Final = 0.02  # between looks at a commit under way, when the time is over


class Abandoned(Exception):
    """The attempt has timed out or was cancelled before its commit."""


class Attempt(Execution[StepContext]):
    """An attempt of a transactional step.

    Its commit and its end from outside (a time-out, a cancellation) exclude each other: the `gate`
    is for who comes first. A thread cannot be stopped otherwise; code on the event loop is also
    cancelled, before its commit.
    """

    transacts = True
    final = (ConfigurationError,)  # its code has ended its own transaction

    __slots__ = (
        "_ends_at",
        "began_at",
        "commits",
        "gate",
        "recorded",
        "unanswered",
        "unheld",
        "unsure",
    )

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.gate = threading.Lock()
        self.recorded: tuple[int | None, Event] | None = None
        self.unheld = self.commits = False
        self.unsure = False  # True once a try may have been committed, or another attempt
        self.unanswered = False  # True while it is not known if a try has left its result
        self.began_at = time.time()  # a clock that runs while the machine sleeps
        self._ends_at: float | None = None  # when its time-out was to come, while it commits

    def finished(self, future: asyncio.Future[object]) -> None:
        """Report the end; that of a recorded step stands, whatever middleware made of it."""
        if self.recorded is None or self.ended:
            super().finished(future)
            return
        if not future.cancelled() and (error := future.exception()) is not None:
            logger.error("%s is recorded; its middleware failed: %r", self.function, error)
        self._end()

    def fail(self, error: BaseException) -> None:
        """Report a failure, and if it is only that the run is not held here."""
        if isinstance(error, RunNotHeld):
            self.unheld = True
            named = ConfigurationError(str(error))  # a name that users know
            error = named.with_traceback(error.__traceback__)
        super().fail(error)

    def expire(self, message: str) -> None:
        """Fail with a time-out, unless the attempt commits at this moment: then look again."""
        if self.gate.acquire(blocking=False):
            super().expire(message)
        else:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(_LOOK_SECONDS, self.expire, message)

    def begin_commit(self) -> None:
        """Let no end come from outside while it commits. Raises TimeoutError if the time is over.

        Raises Abandoned if an end has come, also while a try before this one had the gate.
        """
        if not self.gate.acquire(blocking=False):
            raise Abandoned
        try:
            self._suspend_limit()
            if self.ended:
                raise Abandoned
            self.commits = True
        except BaseException:
            self.stop_commit()
            raise

    def stop_commit(self) -> None:
        """Let an end come again: nothing was committed."""
        self.unanswered = self.commits = False
        self.gate.release()
        if self.limit is not None and self._ends_at is not None:
            self.limit.reschedule(self._ends_at)
        self._ends_at = None

    def _suspend_limit(self) -> None:
        if self.limit is None or (ends_at := self.limit.when()) is None:
            return
        if self.limit.expired() or ends_at <= asyncio.get_running_loop().time():
            self.timed_out = True
            raise TimeoutError(over(self.limit_seconds or 0))
        self.limit.reschedule(None)
        self._ends_at = ends_at

    def take(self, function: Transaction[..., object], index: int | None, end: Event) -> object:
        """Return the result of an attempt before, whose end is that of this one, too.

        It has an index if it is in the log. The turn compares what it is the end of with the call.
        """
        self.recorded = index, end
        self.result = bytes(read_step_completed(end.details or "").result).decode()
        return function.decode_result(self.result)

    def cancel(self) -> asyncio.Future[object] | None:
        """Ask it to stop, and report nothing; it commits nothing, unless it does at this moment.

        Then that is what to wait for, in a thread, too: what begins after it sees the rows.
        """
        if self.gate.acquire(blocking=False) or self.function.is_async:
            return super().cancel()
        committing, self.future = self.future, None  # so that it is not cancelled
        super().cancel()
        return committing


class Way(Protocol):
    """How an attempt waits: on the event loop, or in its thread."""

    async def pause(self, seconds: float) -> None: ...
    async def of_store(self, call: Coroutine[Any, Any, T]) -> T: ...
    async def whole(self, call: Coroutine[Any, Any, T]) -> T: ...


class OnLoop:
    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def of_store(self, call: Coroutine[Any, Any, T]) -> T:
        return await call

    async def whole(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call to its end. A cancellation meanwhile is lost if the call succeeds."""
        task = asyncio.ensure_future(call)
        cancelled = False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                cancelled = True
        if cancelled and task.exception() is not None:
            raise asyncio.CancelledError
        return task.result()


class InThread:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    async def of_store(self, call: Coroutine[Any, Any, T]) -> T:
        """Make a call of the store, which belongs to the loop."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def whole(self, call: Coroutine[Any, Any, T]) -> T:
        return await call


def finish(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call that does not suspend."""
    try:
        call.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    call.close()
    raise AssertionError("a synchronous connection never suspends")
