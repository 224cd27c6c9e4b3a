"""Middleware: code around every run, step, activity and consumed message of an app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from holdfast.definitions.activities import ActivityContext
from holdfast.definitions.consumers import MessageContext
from holdfast.definitions.steps import StepContext
from holdfast.errors import ConfigurationError

CallNext: TypeAlias = Callable[[], Awaitable[object]]
Layer: TypeAlias = "Callable[..., Awaitable[object]]"  # (context, call_next)
ThreadLayer: TypeAlias = Callable[[Callable[[], object]], object]


class Middleware:
    """Code around what an app runs; override what you need.

    Each method calls the next with `await call_next()`, and may look at the result, return another
    one, or raise. `step` and `activity` surround single attempts on the worker's event loop, even
    if the function itself runs in a thread; it sees context variables that they set. `run`
    surrounds the workflow's code and is replayed with it: it must do the same each time, and call
    steps for anything outside. `in_thread` surrounds each plain function in the thread that it runs
    in: what belongs to a thread, such as connections of some libraries, is opened and closed there.

    ```python
    class Timing(Middleware):
        async def step(self, context: StepContext, call_next: CallNext) -> object:
            started = time.perf_counter()
            try:
                return await call_next()
            finally:
                histogram.record(time.perf_counter() - started, step=context.step)

    app.add_middleware(Timing())
    ```
    """

    async def run(self, ctx: Any, call_next: CallNext) -> object:
        """Surround a run's code; `ctx` is its Context."""
        return await call_next()

    async def step(self, context: StepContext, call_next: CallNext) -> object:
        """Surround an attempt of a step. `context` is a FlowStepContext for a step of a flow."""
        return await call_next()

    async def activity(self, context: ActivityContext, call_next: CallNext) -> object:
        """Surround an attempt of an activity."""
        return await call_next()

    async def message(self, context: MessageContext, call_next: CallNext) -> object:
        """Surround a call of a consumer."""
        return await call_next()

    def in_thread(self, call: Callable[[], object]) -> object:
        """Surround a plain function of a step, an activity or a consumer, in its thread."""
        return call()


class Layers:
    """The middleware of an app for runs, steps, activities and messages, outermost first.

    Methods that were not overridden are left out.
    """

    def __init__(self) -> None:
        self.runs: list[Layer] = []
        self.steps: list[Layer] = []
        self.activities: list[Layer] = []
        self.messages: list[Layer] = []
        self.threads: list[ThreadLayer] = []

    def add(self, middleware: Middleware) -> None:
        """Add a middleware inside of the others. Raises ConfigurationError for another value."""
        if not isinstance(middleware, Middleware):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"{middleware!r} is not a middleware: pass an instance of a class derived from it"
            )
        kind = type(middleware)
        if kind.run is not Middleware.run:
            self.runs.append(middleware.run)
        if kind.step is not Middleware.step:
            self.steps.append(middleware.step)
        if kind.activity is not Middleware.activity:
            self.activities.append(middleware.activity)
        if kind.message is not Middleware.message:
            self.messages.append(middleware.message)
        if kind.in_thread is not Middleware.in_thread:
            self.threads.append(middleware.in_thread)


def surround(layers: list[Layer], context: object, call: CallNext) -> CallNext:
    """Return `call` with layers around it."""
    for layer in reversed(layers):
        call = partial(layer, context, _once(call))
    return call


def _once(call: CallNext) -> CallNext:
    """Return `call` so that a second use raises: it would do the work a second time."""
    used = False

    def call_next() -> Awaitable[object]:
        nonlocal used
        if used:
            raise ConfigurationError(
                "call_next() was called twice by a middleware, which would do the work twice: "
                "call it once, and leave repetition to the retry policy of the step or activity"
            )
        used = True
        return call()

    return call_next
