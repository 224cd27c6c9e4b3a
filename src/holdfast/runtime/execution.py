"""Running one attempt of a step: decode its arguments, call it, encode what comes of it.

An async step runs as a task of the worker's event loop, a sync one in a thread of a bounded
pool. What came of it is reported once, from a plain callback of the event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TypeAlias, cast

from holdfast.codec import describe
from holdfast.errors import PayloadError
from holdfast.runtime.clock import Cancellable, Clock
from holdfast.runtime.step_context import StepContext, bind_step
from holdfast.runtime.turn import Call, RunInfo
from holdfast.types import ErrorInfo

logger = logging.getLogger("holdfast.run")

AsyncFunction: TypeAlias = Callable[..., Awaitable[object]]
Report: TypeAlias = "Callable[[Execution], None]"


class StepExit(Exception):
    """A step asked the interpreter to exit; that is a failure of the step, not of the worker."""


class Execution:
    """One attempt under way. After the report either `result` or `error` is set."""

    __slots__ = (
        "_clock",
        "_report",
        "call",
        "context",
        "error",
        "future",
        "result",
        "retry_at",
        "started_at",
        "timed_out",
        "timer",
    )

    def __init__(self, call: Call, info: RunInfo, clock: Clock, report: Report) -> None:
        self.call, self.context = call, StepContext(info, call)
        self.started_at = clock.now()
        self.result: str | None = None
        self.error: ErrorInfo | None = None
        self.retry_at: int | None = None
        self.timed_out = False
        self.future: asyncio.Future[object] | None = None
        self.timer: Cancellable | None = None
        self._clock = clock
        self._report: Report | None = report

    def finished(self, future: asyncio.Future[object]) -> None:
        """Take what came of the attempt, and report it."""
        if self._report is None:
            if not future.cancelled():
                future.exception()  # nobody waits for it; it is not an oversight
            return
        try:
            self.result = self.call.step.encode_result(future.result())
        except asyncio.CancelledError:
            self.fail(asyncio.CancelledError("the step cancelled itself"))
        except BaseException as error:  # whatever the step raised: else its run would wait for ever
            self.fail(error)
        else:
            self._settle()

    def expire(self, seconds: float) -> None:
        """End the wait for a thread: it cannot be stopped, but it is told and not listened to."""
        self.timed_out = True
        self.context.cancel()
        self.fail(TimeoutError(f"the attempt ran longer than {seconds:g} s"))

    def fail(self, error: BaseException) -> None:
        """Report a failure, and whether the step is to be tried again."""
        if self._report is not None:
            self.error = describe(error)
            self.retry_at = self._next_try(error)
            self._settle()

    def cancel(self) -> asyncio.Future[object] | None:
        """Ask the step to stop, and report nothing. Returns what to wait for, None for a thread.

        A step that still waits for a thread never starts.
        """
        self._report = None
        self.context.cancel()
        if self.timer is not None:
            self.timer.cancel()
        future = self.future
        if future is None or future.done():
            return None
        future.cancel()
        return future if isinstance(future, asyncio.Task) else None

    def _settle(self) -> None:
        report, self._report = self._report, None
        if self.timer is not None:
            self.timer.cancel()
        if report is not None:
            report(self)

    def _next_try(self, error: BaseException) -> int | None:
        if isinstance(error, PayloadError):  # the same code gives the same value
            return None
        call = self.call
        retry = call.step.retry
        try:
            if not retry.allows(self.context.attempt, error):
                return None
        except Exception:
            logger.exception("should_retry of step %s failed; no retry", call.name)
            return None
        pause = retry.delay_seconds(self.context.attempt, random.random)
        return self._clock.now() + int(pause * 1e6)


class StepRunner:
    """Start attempts."""

    def __init__(self, threads: Executor, clock: Clock) -> None:
        self._threads, self._clock = threads, clock

    def start(self, call: Call, info: RunInfo, report: Report) -> Execution:
        """Start an attempt. `report` is called with it when it has ended, never before return."""
        execution = Execution(call, info, self._clock, report)
        loop = asyncio.get_running_loop()
        step = call.step
        try:
            args, kwargs = step.decode_arguments(call.arguments)
        except Exception as error:
            loop.call_soon(execution.fail, error)
            return execution
        variables = contextvars.copy_context()
        variables.run(bind_step, execution.context)
        timeout = step.timeout_seconds
        future: asyncio.Future[object]
        if step.is_async:
            attempt = _guarded(cast("AsyncFunction", step.fn), args, kwargs)
            if timeout is not None:
                attempt = _limited(attempt, timeout, execution)
            future = asyncio.Task(attempt, loop=loop, context=variables)
        else:
            started = None if timeout is None else partial(_arm, loop, execution, timeout)
            in_thread = partial(_in_thread, started, step.fn, args, kwargs)
            future = loop.run_in_executor(self._threads, partial(variables.run, in_thread))
        execution.future = future
        future.add_done_callback(execution.finished)
        return execution


async def _guarded(
    fn: AsyncFunction, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> object:
    """Keep the interpreter's exits away from the worker's loop, which would end with them."""
    try:
        return await fn(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as error:
        raise StepExit(f"the step raised {error!r}") from error


async def _limited(
    coroutine: Coroutine[object, object, object], seconds: float, execution: Execution
) -> object:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await coroutine
    except TimeoutError:
        if not limit.expired():
            raise
        execution.timed_out = True
        raise TimeoutError(f"the attempt ran longer than {seconds:g} s") from None


def _arm(loop: asyncio.AbstractEventLoop, execution: Execution, seconds: float) -> None:
    """Start the clock of a thread that begins now: the time in the queue does not count."""

    def arm() -> None:
        if execution.future is not None and not execution.future.done():
            execution.timer = loop.call_later(seconds, execution.expire, seconds)

    loop.call_soon_threadsafe(arm)


def _in_thread(
    started: Callable[[], None] | None,
    fn: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> object:
    if started is not None:
        started()
    try:
        return fn(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:
        raise StepExit(f"the step raised {error!r}") from error
