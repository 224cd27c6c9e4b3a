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

    def __init__(self, call: Call, context: StepContext, started_at: int, report: Report) -> None:
        self.call, self.context, self.started_at = call, context, started_at
        self.result: str | None = None
        self.error: ErrorInfo | None = None
        self.retry_at: int | None = None
        self.timed_out = False
        self.future: asyncio.Future[object] | None = None
        self._report: Report | None = report
        self.timer: Cancellable | None = None

    def cancel(self) -> asyncio.Future[object] | None:
        """Ask the step to stop, and report nothing. Returns what to wait for, None for a thread."""
        self._report = None
        self.context.cancel()
        if self.timer is not None:
            self.timer.cancel()
        future = self.future
        if isinstance(future, asyncio.Task) and not future.done():
            future.cancel()
            return future
        return None

    def settle(self) -> None:
        """Report, unless the attempt was called off or has been reported."""
        report, self._report = self._report, None
        if self.timer is not None:
            self.timer.cancel()
        if report is not None:
            report(self)


class StepRunner:
    """Start attempts, and turn what comes of them into results, errors and retries."""

    def __init__(self, threads: Executor, clock: Clock) -> None:
        self._threads, self._clock = threads, clock

    def start(self, call: Call, info: RunInfo, report: Report) -> Execution:
        """Start an attempt. `report` is called with it when it has ended, never before return."""
        context = StepContext(info, call)
        execution = Execution(call, context, self._clock.now(), report)
        loop = asyncio.get_running_loop()
        step = call.step
        try:
            args, kwargs = step.decode_arguments(call.arguments)
        except Exception as error:
            loop.call_soon(self._fail, execution, error)
            return execution
        variables = contextvars.copy_context()
        variables.run(bind_step, context)
        timeout = step.timeout_seconds
        if step.is_async:
            attempt = _guarded(cast("AsyncFunction", step.fn), args, kwargs)
            if timeout is not None:
                attempt = _limited(attempt, timeout, execution)
            future: asyncio.Future[object] = loop.create_task(attempt, context=variables)
        else:
            started = _thread_timer(loop, execution, timeout, self._expire)
            in_thread = partial(_in_thread, started, step.fn, args, kwargs)
            future = loop.run_in_executor(self._threads, partial(variables.run, in_thread))
        execution.future = future
        future.add_done_callback(lambda done: self._ended(execution, done))
        return execution

    def _ended(self, execution: Execution, future: asyncio.Future[object]) -> None:
        if future.cancelled():
            self._fail(execution, asyncio.CancelledError("the step cancelled itself"))
            return
        error = future.exception()
        if error is not None:
            self._fail(execution, error)
            return
        try:
            execution.result = execution.call.step.encode_result(future.result())
        except PayloadError as refused:
            self._fail(execution, refused)
            return
        execution.settle()

    def _expire(self, execution: Execution, seconds: float) -> None:
        """End the wait for a thread: it cannot be stopped, but it is told and not listened to."""
        execution.timed_out = True
        execution.context.cancel()
        self._fail(execution, TimeoutError(f"the attempt ran longer than {seconds:g} s"))

    def _fail(self, execution: Execution, error: BaseException) -> None:
        execution.error = describe(error)
        execution.retry_at = self._retry_at(execution.call, error)
        execution.settle()

    def _retry_at(self, call: Call, error: BaseException) -> int | None:
        if isinstance(error, PayloadError):  # the same code gives the same value
            return None
        retry = call.step.retry
        try:
            if not retry.allows(call.attempt, error):
                return None
        except Exception:
            logger.exception("should_retry of step %s failed; no retry", call.name)
            return None
        return self._clock.now() + int(retry.delay_seconds(call.attempt, random.random) * 1e6)


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


def _thread_timer(
    loop: asyncio.AbstractEventLoop,
    execution: Execution,
    seconds: float | None,
    expire: Callable[[Execution, float], None],
) -> Callable[[], None] | None:
    """Return what a thread calls when it begins: its time counts from there, not from queueing."""
    if seconds is None:
        return None

    def arm() -> None:
        if execution.future is not None and not execution.future.done():
            execution.timer = loop.call_later(seconds, expire, execution, seconds)

    def started() -> None:
        loop.call_soon_threadsafe(arm)

    return started


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
