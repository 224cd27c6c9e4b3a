"""Context: what a workflow's code gets from its run."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Never, ParamSpec, TypeVar, cast, overload
from uuid import UUID, uuid5

from holdfast.definitions.steps import Step
from holdfast.retry import Retry
from holdfast.runtime.code.activity_calls import ActivityPart
from holdfast.runtime.code.approvals import ApprovalPart
from holdfast.runtime.code.attributes import AttributePart
from holdfast.runtime.code.children import ChildPart
from holdfast.runtime.code.closed_caller import CLOSED
from holdfast.runtime.code.continuing import ContinuingPart
from holdfast.runtime.code.entities import EntityPart
from holdfast.runtime.code.mailbox import SignalPart
from holdfast.runtime.code.run import Run
from holdfast.runtime.code.run_log import RunLog
from holdfast.runtime.code.sending import SendingPart
from holdfast.runtime.code.steps import Steps
from holdfast.runtime.code.streams import StreamPart
from holdfast.runtime.code.topics import TopicPart
from holdfast.runtime.code.updates import UpdatePart
from holdfast.runtime.code.values import ValuePart
from holdfast.runtime.code.webhooks import WebhookPart
from holdfast.runtime.loop.tasks import Evicted
from holdfast.types import read_tick
from holdfast.values.durations import Duration, seconds
from holdfast.values.moments import checked_micros, to_datetime
from holdfast.values.names import check_step_name
from holdfast.values.suggestions import missing_attribute

P = ParamSpec("P")
R = TypeVar("R")


class Context(
    SignalPart,
    TopicPart,
    ValuePart,
    AttributePart,
    ActivityPart,
    ChildPart,
    SendingPart,
    StreamPart,
    ApprovalPart,
    WebhookPart,
    UpdatePart,
    ContinuingPart,
    EntityPart,
):
    """The run, as its workflow's code sees it.

    Everything here gives the same on each replay. The `id` of a call is its name in the log: give
    one to calls that are made often or may be reordered.
    """

    _not_data: ClassVar = (
        "only a workflow has a context, so leave it out here; code of a step finds its run in "
        "current_step(), and gets other values as arguments"
    )

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Never:
            """Raise AttributeError, which suggests a name that exists."""
            raise missing_attribute(self, name)

    @property
    def run_id(self) -> UUID:
        """The run's id. If the policy of its workflow has retried it, that of its first attempt."""
        return self._run.known_as

    @property
    def workflow(self) -> str:
        """The workflow's name."""
        return self._run.info.name

    @property
    def app(self) -> str:
        """The name of the app whose workflow it is."""
        return self._run.workflow.registry.name

    @property
    def version(self) -> int:
        """The version that the run was started with."""
        return self._run.info.version

    @property
    def run_key(self) -> str | None:
        """The key that the run was started with, None without one.

        Forks and retries of the run have it too.
        """
        return self._run.info.key

    @property
    def parent_run_id(self) -> UUID | None:
        """The id of the run that started this one as its child, None if no run did.

        If a retry of that run has taken this one over, it gets the signals that are sent to the id.
        Forks and retries of this run have none: no run waits for them.
        """
        return self._run.info.parent_run_id

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the run was started with; the children of the run get them too."""
        return MappingProxyType(self._run.info.headers or {})

    @property
    def scheduled_at(self) -> datetime | None:
        """The tick of the schedule that started the run, in UTC; None if no schedule did.

        Its moment by the schedule, not that of the start. Children, continuations, forks and
        retries of the run have it too.
        """
        return read_tick(self._run.info.headers)

    @property
    def attempt(self) -> int:
        """How many workers have claimed the run since it last made progress, this one included.

        For logs only: it is another number on replay.
        """
        return self._run.info.attempt

    @property
    def cancelled(self) -> bool:
        """True if a cancel of the run was requested."""
        return self._run.cancel_requested

    @property
    def log(self) -> RunLog:
        """A logger that says nothing while the code only repeats what it has done before."""
        return RunLog(self._run)

    # Steps

    @overload
    def step(
        self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[object, None, R]: ...
    @overload
    def step(
        self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[object, None, R]: ...
    @overload  # mypy cannot tell these two from the ones above, yet chooses right
    def step(  # type: ignore[overload-cannot-match]
        self,
        name: str,
        fn: Callable[..., Awaitable[R]],
        /,
        *args: object,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        id: str | None = None,
        **kwargs: object,
    ) -> Coroutine[object, None, R]: ...
    @overload
    def step(  # type: ignore[overload-cannot-match]
        self,
        name: str,
        fn: Callable[..., R],
        /,
        *args: object,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        id: str | None = None,
        **kwargs: object,
    ) -> Coroutine[object, None, R]: ...
    def step(  # type: ignore[misc]
        self,
        name: str,
        fn: Callable[..., object],
        /,
        *args: object,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        id: str | None = None,
        **kwargs: object,
    ) -> Coroutine[object, None, object]:
        """Call any function as a step: it runs once, and its result is recorded.

        ```python
        page = await ctx.step("fetch", download, url, retry=Retry(attempts=5), timeout="30s")
        ```

        `fn` is a plain function, an async one, or a step, whose options hold if none are
        given here. `timeout` bounds one attempt. A function whose own parameters have the
        names `retry`, `timeout` or `id` is called through a step of its own.

        Raises StepFailed when its attempts are exhausted, StepTimedOut when the last of them
        ran out of time, PayloadError for arguments that cannot be stored.
        """
        leaf = check_step_name(name if id is None else id)
        step = _named(fn, name, retry, timeout, self._run.workflow.step_retry)
        return self._run.ledger(Steps).call(step, leaf, args, kwargs)

    # Waiting

    async def sleep(self, duration: Duration, *, id: str | None = None) -> None:
        """Sleep, for a second or a year: nothing is held while the run sleeps."""
        await self._sleep(seconds(duration), None, id)

    async def sleep_until(self, moment: datetime, *, id: str | None = None) -> None:
        """Sleep until a moment, which must be aware of its time zone; the past is at once."""
        due_at = checked_micros(moment)
        await self._sleep((due_at - self._run.loop.now) / 1e6, due_at, id)

    async def _sleep(self, delay: float, due_at: int | None, id: str | None) -> None:
        loop, name = self._run.loop, "sleep" if id is None else check_step_name(id)
        if delay <= 0:
            await asyncio.sleep(0)
            return
        done: asyncio.Future[None] = loop.create_future()
        timer = loop.start_timer(name, loop.time() + delay, _wake, done, due_at=due_at)
        try:
            await done
        finally:
            timer.cancel()

    # Time and chance

    def now(self) -> datetime:
        """Return the run's time, in UTC: the moment of the newest event that it has seen.

        It stands still while the code computes.
        """
        return to_datetime(self._run.loop.now)

    def time(self) -> float:
        """Return the run's time in seconds since 1970 UTC."""
        return self._run.loop.time()

    def uuid(self, *, id: str | None = None) -> UUID:
        """Return a new UUID that is the same on each replay."""
        key = self._run.loop.scope().key("uuid" if id is None else check_step_name(id))
        return uuid5(self._run.seed, key)

    @property
    def random(self) -> Random:
        """The random numbers of the running task: the same on each replay."""
        return self._run.loop.scope().random(str(self._run.seed))


def current_context() -> Context | None:
    """Return the context of the workflow whose code calls, None outside of a workflow's code.

    So a library can be durable in a workflow, and work as ever elsewhere. Steps and activities are
    outside: they have `current_step` and `current_activity`.

    ```python
    async def pause(seconds: float) -> None:
        if (ctx := current_context()) is not None:
            ctx.log.info("pausing for %s s", seconds)
        await asyncio.sleep(seconds)
    ```
    """
    caller = getattr(_get_running_loop(), "caller", None)
    if caller is CLOSED:
        raise Evicted
    return None if caller is None else Context(cast("Run", caller))


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _named(
    fn: Callable[..., object],
    name: str,
    retry: Retry | None,
    timeout: Duration | None,
    default: Retry,
) -> Step[..., object]:
    if isinstance(fn, Step):
        step = cast("Step[..., object]", fn)
        return step.with_options(name=name, retry=retry, timeout=timeout)
    return Step(fn, name=name, retry=default if retry is None else retry, timeout=timeout)
