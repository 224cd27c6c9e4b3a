"""The workers of an environment: they can be killed, and call other functions for some steps."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, cast

from msgspec.structs import replace

from holdfast.definitions.app import App
from holdfast.definitions.jobs import Job
from holdfast.definitions.middleware import CallNext, Layer
from holdfast.definitions.recorded import Recorded
from holdfast.definitions.signatures import Arguments
from holdfast.errors import ConfigurationError
from holdfast.store.memory.rows import TURN
from holdfast.store.port import Store
from holdfast.testing.clock import StoreClock
from holdfast.testing.plan import Plan
from holdfast.testing.stand_in import StandIn
from holdfast.worker import Worker, WorkerOptions
from holdfast.worker.attempts import Execution, Launcher
from holdfast.worker.threads import ThreadBook

_LOOKS_PER_BEAT = 100  # looks at running attempts between two heartbeats

Replaced: TypeAlias = "dict[object, Callable[..., Any] | list[object]]"
"""What stands for the functions of steps: others, or what their attempts raise or return."""


def replacement(step: object, with_: object) -> tuple[object, Callable[..., Any] | list[object]]:
    """Return the function of a step or an activity, and what stands for it.

    Raises ConfigurationError for what has no attempts, or what cannot stand for a function.
    """
    if isinstance(step, Job):
        step = cast("Job[..., object]", step).definition
    if not isinstance(step, Recorded):
        raise ConfigurationError(
            f"{step!r} cannot be replaced: give a step, an activity, a job or a step of a flow "
            "itself, as in `environment.replace(charge, …)`"
        )
    if not callable(with_) and not (isinstance(with_, list) and with_):
        raise ConfigurationError(
            f"{step} cannot be replaced with {with_!r}: give a function, or a list of what its "
            'attempts raise or return, as in [ConnectionError(), "receipt"]'
        )
    return _plain(cast("Recorded[..., object]", step).fn), cast("Callable[..., Any]", with_)


def _plain(fn: object) -> object:
    return getattr(fn, "__func__", fn)  # that of all instances


async def _end_as(end: object, *args: object, **kwargs: object) -> object:
    if isinstance(end, BaseException):
        raise end
    return end


class PlannedLauncher(Launcher):
    """Starts attempts as the plan and the replaced functions say."""

    plan: Plan
    replaced: Replaced
    stand_in: StandIn

    def launch_given(
        self, execution: Execution[Any], given: Arguments, layers: list[Layer]
    ) -> None:
        """Start an attempt with decoded arguments."""
        self.plan.begun(execution)
        stand_in = self.replaced.get(_plain(execution.function.fn))
        if stand_in is not None and not callable(stand_in):
            ends = stand_in
            stand_in = partial(_end_as, ends[min(execution.context.attempt, len(ends)) - 1])
        if stand_in is not None:
            execution.function = copy.copy(execution.function)
            is_async = inspect.iscoroutinefunction(stand_in)
            vars(execution.function).update(fn=stand_in, is_async=is_async)
            execution.code = stand_in
        if self.plan.draw is not None:
            layers = [self._apart, *layers]
        with self.stand_in.given():  # also if the test's own task launches it
            super().launch_given(execution, given, layers)

    async def _apart(self, context: object, call_next: CallNext) -> object:
        await self.plan.pause()
        result = await call_next()
        await self.plan.pause()
        return result


class _Inline(ThreadPoolExecutor):
    """Calls functions at once: how long a thread takes cannot be drawn."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function, and return its result as a future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class KillableWorker(Worker):
    """A worker that can be killed."""

    _launcher_type = PlannedLauncher

    def __init__(
        self,
        app: App,
        store: Store,
        options: WorkerOptions,
        clock: StoreClock,
        plan: Plan,
        replaced: Replaced,
        stand_in: StandIn,
    ) -> None:
        self._plan, self._replaced, self._stand_in = plan, replaced, stand_in
        self._looks = 0  # one after the other, at which attempts were running
        super().__init__(app, store, options, clock=clock)

    def _make_launcher(self, app: App, book: ThreadBook) -> Launcher:
        if self._plan.draw is not None:
            self._threads = _Inline()
        launcher = super()._make_launcher(app, book)
        if self._plan.draw is not None:
            self._transactions.seals = False  # what is called at once cannot wait for the loop
        assert isinstance(launcher, PlannedLauncher)
        launcher.plan, launcher.replaced = self._plan, self._replaced
        launcher.stand_in = self._stand_in
        return launcher

    async def start(self) -> None:
        """Start. Clients that its resources open are clients of the environment."""
        with self._stand_in.given():
            await super().start()

    async def look(self, store: Store) -> bool:
        """Return True if attempts run. From time to time they are told if they are to stop.

        Elsewhere heartbeats tell them; here virtual time stands still while they run.
        """
        self._looks = self._looks + 1 if self.executing else 0
        if self._looks and self._looks % _LOOKS_PER_BEAT == 0:
            held = [lease for lease in self._workload.leases() if lease.key != TURN]
            leases = [replace(lease, details=None) for lease in held]
            limit = self.options.lease_seconds
            answer = await store.heartbeat(self.info, leases, lease_seconds=limit)
            numbers = {(lease.run_id, lease.key): lease.lease_no for lease in leases}
            for task in answer.lost:
                self._workload.lose(*task, numbers[task])
            for task in answer.cancelled:
                self._workload.request_cancel(*task)
        return self._looks > 0

    async def kill(self) -> None:
        """Stop everything, when the store cannot be reached any more.

        What runs in a thread cannot be stopped, and is waited for: it has had its effect then.
        """
        self._last_calls.make = _in_vain  # type: ignore[method-assign]
        self._duties.scheduler.forget()
        await self.stop(grace=0)
        await asyncio.to_thread(self._threads.shutdown)


async def _in_vain(call: Callable[[], Awaitable[object]], loss: str = "") -> None:
    """Make a last call. The store stops it, as it stops all calls of a worker that was killed."""
    with suppress(asyncio.CancelledError):
        await call()
