"""One attempt of a step or an activity: decode its arguments, call it, encode its result.

An async function runs as a task of the worker's event loop, a sync one in a thread of a bounded
pool. Its end is reported once, from a plain callback of the event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from holdfast.codec import describe
from holdfast.definitions.lifespan import Lifespan, bind_lifespans
from holdfast.definitions.middleware import Layer, surround
from holdfast.definitions.recorded import AttemptContext, Recorded
from holdfast.definitions.signatures import NO_ARGUMENTS, Arguments
from holdfast.definitions.steps import StepContext
from holdfast.definitions.streams import StreamSink
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.code.steps import Call, Restored
from holdfast.runtime.loop.asyncio_forms import foreign, is_foreign
from holdfast.types import ErrorInfo, Event
from holdfast.values.trace_ids import QuietHeaders
from holdfast.worker.clock import Cancellable, Clock
from holdfast.worker.event_loop import LoopEnd
from holdfast.worker.judging import asked_pause, decided, may_be_retried
from holdfast.worker.observing import Attempt, Observing
from holdfast.worker.threads import AttemptExit, ThreadBook
from holdfast.worker.tracer import OpenSpan, Tracer

AsyncFunction: TypeAlias = Callable[..., Awaitable[object]]
C = TypeVar("C", bound=AttemptContext)


class Execution(Generic[C]):
    """One attempt under way. After the report either `result` or `error` is set.

    `report` is called with the attempt itself. `retryable` is True if another attempt may succeed.
    """

    transacts: ClassVar[bool] = False
    final: ClassVar[tuple[type[BaseException], ...]] = ()  # errors after which it is not retried
    recorded: tuple[int | None, Event] | None = None  # by its transaction: its index, and its end
    commits: bool = False  # True while it is not known what came of its transaction's commit
    unheld = False  # True if its transaction could not commit because the run is not held here

    __slots__ = (
        "_report",
        "begun",
        "code",
        "context",
        "delay_seconds",
        "error",
        "function",
        "future",
        "headers",
        "lease_no",
        "limit",
        "limit_seconds",
        "loop_end",
        "observed",
        "restored",
        "result",
        "retryable",
        "span",
        "started_at",
        "timed_out",
        "timer",
    )

    def __init__(
        self,
        function: Recorded[..., object],
        context: C,
        started_at: int,
        limit_seconds: float | None,
        report: Callable[[Any], None],
        lease_no: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`lease_no` is that of the task that it belongs to, `headers` those of its run."""
        self.function, self.context, self.started_at = function, context, started_at
        self.limit_seconds = limit_seconds
        self.limit: asyncio.Timeout | None = None  # of code on the event loop
        self.code: Callable[..., Any] = function.fn  # what is called
        self.result: str | None = None
        self.restored: Restored | None = None  # the result as a replay would decode it
        self.error: ErrorInfo | None = None
        self.retryable = self.timed_out = self.begun = False  # begun: its thread has
        self.delay_seconds: float | None = None  # the pause that the error asks for
        self.future: asyncio.Future[Any] | None = None
        self.timer: Cancellable | None = None
        self.loop_end: LoopEnd | None = None
        self.lease_no, self.headers = lease_no, headers
        self.span: OpenSpan | None = None
        self.observed: Callable[[Attempt], None] | None = None
        self._report: Callable[[Any], None] | None = report

    @property
    def ended(self) -> bool:
        """True if the attempt has reported its end, or must not report it any more."""
        return self._report is None

    @property
    def name(self) -> str:
        """The name of the step or activity."""
        return self.function.name

    @property
    def kind(self) -> str:
        """What it is an attempt of, in a word."""
        return self.function.kind

    def observe(self, observing: Observing) -> None:
        """Say who is told of this attempt."""
        self.observed = observing.attempt_ended
        if self.context.attempt > 1:
            observing.attempt_repeated(self)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the clock of a thread that begins now: the time in the queue does not count."""
        self.begun = True
        if self.limit_seconds is not None:
            loop.call_soon_threadsafe(self._arm, loop, self.limit_seconds)

    def _arm(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        if not self.ended:
            self.timer = loop.call_later(seconds, self.expire, over(seconds))

    def finished(self, future: asyncio.Future[object]) -> None:
        """Report the result or the error of the attempt."""
        if self._report is None:
            if not future.cancelled():
                future.exception()  # mark it as seen, so that asyncio does not warn of it
            return
        failure: BaseException | None = None
        try:
            self.result, restored = self.function.encode_and_restore(future.result())
            self.restored = Restored(restored)
        except asyncio.CancelledError:
            failure = asyncio.CancelledError(f"the {self.function.kind} cancelled itself")
        except BaseException as error:  # of any kind: otherwise its run would wait for ever
            failure = error
        # Not where it is handled: what the run's code raises next would have it as its context.
        self._end() if failure is None else self.fail(failure)

    def expire(self, message: str) -> None:
        """Fail with a time-out. A thread cannot be stopped: it is told, and its end is ignored."""
        self.timed_out = True
        self.context.cancel()
        future = self.future
        self.fail(TimeoutError(message))
        if isinstance(future, asyncio.Task):
            future.cancel()  # the middleware around the thread

    def fail(self, error: BaseException) -> None:
        """Report a failure, after what an async `should_retry` says of it."""
        if self._report is None or self.drop_with_loop():
            return
        if is_foreign(error):
            error = foreign(error, "a future")
        self.error = describe(error)
        verdict = not isinstance(error, self.final) and may_be_retried(self.function, error)
        if not isinstance(verdict, Awaitable):
            self._judge(error, verdict)
            return
        report, self._report = self._report, None  # what else the attempt does is ignored
        if self.timer is not None:
            self.timer.cancel()
        self.future = asyncio.ensure_future(self._await_verdict(error, verdict, report))

    def drop_with_loop(self) -> bool:
        """Drop it unreported if it fails as its event loop ends; return False otherwise."""
        end = self.loop_end
        if end is None or not end.has_begun() or not isinstance(self.future, asyncio.Task):
            return False
        self.cancel()
        return True

    def refuse(self, error: BaseException) -> None:
        """Report that its arguments do not fit its code."""
        self.fail(error)

    async def _await_verdict(
        self, error: BaseException, verdict: Awaitable[bool], report: Callable[[Any], None]
    ) -> None:
        retryable = await decided(self.function, verdict)
        self._report = report
        self._judge(error, retryable)

    def _judge(self, error: BaseException, retryable: bool) -> None:
        self.retryable = bool(retryable)
        self.delay_seconds = asked_pause(self.function, error) if retryable else None
        self._end()

    def cancel(self) -> asyncio.Future[object] | None:
        """Ask it to stop, and report nothing. Return what to wait for, None for a thread.

        An attempt that still waits for a thread never starts.
        """
        self._report = None
        self.context.cancel()
        if self.timer is not None:
            self.timer.cancel()
        self._end_span(stopped=True)
        future = self.future
        if future is None or future.done():
            return None
        future.cancel()
        return future if isinstance(future, asyncio.Task) else None

    def _end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._end_span()
        report, self._report = self._report, None
        if report is not None:
            if self.observed is not None:
                self.observed(self)
            streams = self.context.streams
            if streams is not None and streams.opened:
                streams.finish(self, report)
            else:
                report(self)

    def _end_span(self, *, stopped: bool = False) -> None:
        span, self.span = self.span, None
        if span is not None:
            span.finish(self.error, stopped=stopped)


StepExecution: TypeAlias = Execution[StepContext]


class Launcher:
    """Start attempts. `lifespans` are the values that the worker has opened for them.

    `book` knows which of them use a thread, or wait for one.
    """

    def __init__(
        self,
        threads: Executor,
        lifespans: Mapping[Lifespan[Any], object],
        book: ThreadBook | None = None,
        tracer: Tracer | None = None,
        observing: Observing | None = None,
        streams: StreamSink | None = None,
        transact: Callable[..., StepExecution] | None = None,
    ) -> None:
        self._threads, self._lifespans, self._streams = threads, lifespans, streams
        self._tracer, self._observing, self.transact = tracer, observing, transact
        self.book, self.loop_end = book or ThreadBook(), LoopEnd()
        self._users: set[asyncio.Future[object]] = set()  # attempts that may use lifespans

    def launch(self, execution: Execution[Any], arguments: str, layers: list[Layer]) -> None:
        """Start an attempt; it reports when it has ended, never before this returns.

        `arguments` are JSON text, `layers` the middleware around the attempt.
        """
        try:
            given = execution.function.decode_arguments(arguments)
        except BaseException as error:  # of any kind: otherwise its run would wait for ever
            asyncio.get_running_loop().call_soon(execution.refuse, error)
            return
        self.launch_given(execution, given, layers)

    def launch_given(
        self, execution: Execution[Any], given: Arguments, layers: list[Layer]
    ) -> None:
        """Start an attempt with decoded arguments; see `launch`."""
        loop = asyncio.get_running_loop()
        function = execution.function
        if self._observing is not None:
            execution.observe(self._observing)
        variables, context = contextvars.copy_context(), execution.context
        context.streams = None if execution.transacts else self._streams
        execution.loop_end = self.loop_end
        variables.run(context.variable.set, context)
        if self._lifespans:
            variables.run(bind_lifespans, self._lifespans)
        if self._tracer is not None:
            if type(headers := execution.headers) is QuietHeaders:  # decided once a run
                variables.run(headers.enter)
            else:
                self.trace(execution, variables)
        future: asyncio.Future[object]
        if function.is_async:
            call: AsyncFunction = execution.code
            if layers:
                call = surround(layers, context, partial(call, *given[0], **given[1]))
                given = NO_ARGUMENTS
            attempt = _guarded if execution.limit_seconds is None else _limited
            future = asyncio.Task(attempt(execution, call, given), loop=loop, context=variables)
        else:
            bound = partial(execution.code, *given[0], **given[1])
            in_thread = partial(self.book.execute, execution, loop, bound)
            if layers:
                call = surround(
                    layers,
                    context,
                    # In a thread with what the middleware has set.
                    lambda: self._submit(execution, contextvars.copy_context(), in_thread),
                )
                coroutine = _guarded(execution, call, NO_ARGUMENTS)
                future = asyncio.Task(coroutine, loop=loop, context=variables)
            else:
                future = self._submit(execution, variables, in_thread)
        execution.future = future
        future.add_done_callback(execution.finished)
        if self._lifespans:
            self._users.add(future)
            future.add_done_callback(self._users.discard)

    def trace(
        self, execution: Execution[Any], variables: contextvars.Context | None = None
    ) -> None:
        """Begin the span of an attempt, which becomes the current one among these variables."""
        if self._tracer is not None:
            begin = partial(self._tracer.begin, execution.context, execution.lease_no)
            variables = variables or contextvars.copy_context()
            execution.span = variables.run(begin, execution.started_at, execution.headers)

    async def wait_for_cleanup(self, seconds: float) -> None:
        """Wait until cancelled attempts that may use lifespans have ended, at most `seconds`.

        Threads are not waited for: they cannot be stopped.
        """
        if self._users:
            await asyncio.wait(self._users, timeout=seconds)

    def _submit(
        self,
        execution: Execution[Any],
        variables: contextvars.Context,
        in_thread: Callable[[], object],
    ) -> asyncio.Future[object]:
        self.book.wait(execution)
        future = asyncio.get_running_loop().run_in_executor(self._threads, variables.run, in_thread)
        future.add_done_callback(lambda _: self.book.forget(execution))
        return future


class StepRunner:
    """Start attempts of steps, with middleware around them."""

    def __init__(self, launcher: Launcher, clock: Clock, layers: list[Layer]) -> None:
        self._launcher, self._clock, self._layers = launcher, clock, layers

    def start(
        self, call: Call, info: RunInfo, report: Callable[[StepExecution], None], lease_no: int
    ) -> StepExecution:
        """Start an attempt. `report` is called when it has ended, never before this returns."""
        step, context = call.step, StepContext(info, call, lease_no)
        at, limit, headers = self._clock.now(), step.timeout_seconds, info.headers
        transact = None if step.connects is None else self._launcher.transact
        make: Any = Execution if transact is None else partial(transact, call, info.began)
        execution: StepExecution = make(step, context, at, limit, report, lease_no, headers)
        self._launcher.launch(execution, call.arguments, self._layers)
        return execution

    def retry_at(self, execution: StepExecution) -> int | None:
        """Return when to try again after a failure, None after the last attempt."""
        retry, attempt = execution.function.retry, execution.context.attempt
        if not (execution.retryable and retry.lasts(attempt)):
            return None
        seconds = execution.delay_seconds
        if seconds is None:
            seconds = retry.delay_seconds(attempt, random.random)
        return self._clock.now() + int(seconds * 1e6)


def over(seconds: float) -> str:
    """Return the message for an attempt that ran longer than its limit in seconds."""
    return f"the attempt ran longer than {seconds:g} s"


async def _guarded(execution: Execution[Any], call: AsyncFunction, given: Arguments) -> object:
    """Call the function. SystemExit and KeyboardInterrupt become failures of the attempt."""
    try:
        return await call(*given[0], **given[1])
    except (SystemExit, KeyboardInterrupt) as error:
        raise AttemptExit(f"the {execution.kind} raised {error!r}") from error


async def _limited(execution: Execution[Any], call: AsyncFunction, given: Arguments) -> object:
    execution.limit = limit = asyncio.timeout(execution.limit_seconds)
    try:
        async with limit:
            return await _guarded(execution, call, given)
    except TimeoutError:
        if not limit.expired():
            raise
        execution.timed_out = True
        raise TimeoutError(over(execution.limit_seconds or 0.0)) from None
