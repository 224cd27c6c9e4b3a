"""Activities: functions that any worker of their queue runs, recorded like steps.

The code of an attempt gets its `ActivityContext` from `current_activity`.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar, NoReturn, ParamSpec, Protocol, TypeVar, cast, overload
from uuid import UUID

import msgspec

from holdfast.codec import decoder, encode
from holdfast.definitions.caller import Caller
from holdfast.definitions.options import check_on_cancel, limit_seconds, option
from holdfast.definitions.recorded import AttemptContext, Recorded, check_retry
from holdfast.definitions.signatures import read_signature
from holdfast.details import OnCancel
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.retry import Retry
from holdfast.types import DEFAULT_QUEUE, JSON, ClaimedTask, Writer, read_tick
from holdfast.values.durations import Duration
from holdfast.values.names import check_queue_name, full_name, split_name

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Activity(Recorded[P, R_co]):
    """A function that any worker of its queue runs, and whose result is recorded once per call.

    Calling it inside a workflow schedules it at once. Anywhere else (in tests, in a step) the call
    is an ordinary one. `full_name` is `app/name`, `handler` the name by which workers claim it.
    Times are in seconds, None for no limit: `start_to_close_seconds` for one attempt,
    `schedule_to_close_seconds` for all attempts and the pauses between them,
    `heartbeat_timeout_seconds` for the time between two heartbeats of an attempt. `on_cancel` says
    what becomes of a call when the code that awaits it is cancelled.
    """

    kind: ClassVar[str] = "activity"
    timeout_option: ClassVar[str] = "start_to_close"

    def __init__(
        self,
        fn: Callable[P, Awaitable[R_co]] | Callable[P, R_co],
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        retry: Retry | None = None,
        start_to_close: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        on_cancel: OnCancel = "try",
        app: str | None = None,
    ) -> None:
        """Wrap `fn`; its own name, `Retry()`, no limits and an app of its name are the defaults.

        Raises ConfigurationError for a function that cannot be an activity, such as a method.
        """
        super().__init__(fn, name=name, retry=retry, timeout=start_to_close)
        if next(iter(read_signature(fn).parameters), None) == "self":
            raise ConfigurationError(
                f"{self} is a method, but the worker that runs it does not have the "
                "instance: make it a function"
            )
        self.queue = self._check_queue(queue)
        self.schedule_to_close_seconds = self._limit(schedule_to_close, "schedule_to_close")
        self.heartbeat_timeout_seconds = self._limit(heartbeat_timeout, "heartbeat_timeout")
        self.on_cancel: OnCancel = self._check_on_cancel(on_cancel)
        self.full_name = full_name(self.name if app is None else app, self.name)
        self.units: Callable[..., float] | None = None  # of a call, if a rate counts them

    @property
    def handler(self) -> str:
        """The name by which workers claim it, `app/name@0`: activities have no versions."""
        return f"{self.full_name}@0"

    @property
    def start_to_close_seconds(self) -> float | None:
        """The time that one attempt may take, None for no limit."""
        return self.timeout_seconds

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R_co]:
        # As current_caller() does, without a further call.
        caller: Caller | None = getattr(_get_running_loop(), "caller", None)
        if caller is not None:
            return caller.call_activity(self, args, kwargs)
        return self.call_plain(*args, **kwargs)

    def with_options(
        self,
        *,
        queue: str | None = None,
        retry: Retry | None = None,
        start_to_close: Duration | None = None,
        schedule_to_close: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        on_cancel: OnCancel | None = None,
    ) -> Activity[P, R_co]:
        """Return the same activity on another queue, or with other limits, for some calls."""
        changed = self._copy()
        if queue is not None:
            changed.queue = self._check_queue(queue)
        if retry is not None:
            changed.retry = check_retry(retry, self)
        if start_to_close is not None:
            changed.timeout_seconds = self._limit(start_to_close, "start_to_close")
        if schedule_to_close is not None:
            changed.schedule_to_close_seconds = self._limit(schedule_to_close, "schedule_to_close")
        if heartbeat_timeout is not None:
            changed.heartbeat_timeout_seconds = self._limit(heartbeat_timeout, "heartbeat_timeout")
        if on_cancel is not None:
            changed.on_cancel = self._check_on_cancel(on_cancel)
        return changed

    def count_units(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> int | None:
        """Return the units of a call, None if no function counts them.

        Raises InvalidInput if the function does not return a number of 0 or more.
        """
        if self.units is None:
            return None
        found = self.units(*args, **kwargs)
        return check_units(f"the units of a call of {self}", found)

    def _check_queue(self, queue: str) -> str:
        with option(str(self), "queue"):
            return check_queue_name(queue)

    def _check_on_cancel(self, policy: OnCancel) -> OnCancel:
        with option(str(self), "on_cancel"):
            return check_on_cancel(policy)

    def _limit(self, limit: Duration | None, name: str) -> float | None:
        return limit_seconds(limit, str(self), name)


class ActivityDecorator(Protocol):
    """The decorator that `app.activity(…)` returns: it makes the function an activity."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[object, None, R]], /) -> Activity[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Activity[P, R]: ...


def check_units(what: str, units: object) -> int:
    """Return a number of units, rounded up. Raises InvalidInput."""
    if isinstance(units, bool) or not isinstance(units, int | float) or not 0 <= units < 2**31:
        raise InvalidInput(f"{what} are a number from 0 to 2,147,483,647, not {units!r}")
    return math.ceil(units)


class CompletedLater(BaseException):
    """Raised to end the attempt: another program sends its result.

    Not an Exception: `except Exception` in an activity must not catch it.
    """


_activity: contextvars.ContextVar[ActivityContext | None] = contextvars.ContextVar(
    "holdfast_activity", default=None
)


class ActivityContext(AttemptContext):
    """One attempt of an activity, as its own code sees it.

    `idempotency_key` belongs to this call alone and is the same at each attempt: send it along to
    other systems. `attempt` counts from 1. `token` belongs to this attempt alone: with it another
    program can complete or fail the activity.
    """

    variable = _activity

    __slots__ = ("_is_async", "_stored", "_task", "beaten_at", "details", "used_units")

    def __init__(self, task: ClaimedTask, *, is_async: bool) -> None:
        self.attempt, self._cancelled, self.streams = task.attempts, None, None
        self._task, self._is_async = task, is_async
        self.details: str | None = None  # of the last heartbeat, as JSON text
        self._stored: str | None = None  # the details that the database has
        self.used_units: int | None = None
        self.beaten_at = time.monotonic()

    @property
    def run_id(self) -> UUID:
        """The id of the run that called the activity."""
        return self._task.run_id

    @property
    def run_key(self) -> str | None:
        """The key that the run was started with, None without one; as the code of the run sees it.

        A retry and a fork have that of their first run, so it is a key for other systems that
        also knows a call of the run before.
        """
        return self._task.run_key

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the run was started with."""
        return MappingProxyType(self._task.headers or {})

    @property
    def scheduled_at(self) -> datetime | None:
        """The tick of the schedule that started the run, in UTC; None if no schedule did."""
        return read_tick(self._task.headers)

    @property
    def name(self) -> str:
        """The activity's name."""
        return split_name(self._task.name)[1]

    @property
    def key(self) -> str:
        """The call's key in the run's log."""
        return self._task.key

    @property
    def idempotency_key(self) -> str:
        """The same text at each attempt of this call, and at no attempt of another call."""
        return f"{self._task.run_id}/{self._task.key}"

    @property
    def writer(self) -> tuple[UUID, str, Writer] | None:
        """The run, the key of the task, and the attempt, for streams."""
        task = self._task
        return task.run_id, task.key, Writer(task.key, task.lease_no, self.attempt)

    @property
    def token(self) -> str:
        """The token that completes or fails this attempt from outside.

        It says when the activity began: a deleted run that had the same id may have made the same
        call.
        """
        task = self._task
        return f"{task.run_id}:{task.lease_no}:@{task.started_at}/{task.key}"

    @property
    def last_heartbeat(self) -> JSON:
        """The details of the last heartbeat of the attempts before this one, None if none."""
        text = self._task.heartbeat
        return None if text is None else msgspec.json.decode(text)

    def read_heartbeat(self, type: type[R]) -> R | None:
        """Return `last_heartbeat` as a value of this type, None if there is none.

        Raises InvalidInput for details that do not fit the type.
        """
        text = self._task.heartbeat
        return None if text is None else cast("R", decoder(type)(text))

    def heartbeat(self, details: object = None) -> None:
        """Report that the attempt makes progress, and how far it is. Cheap; safe from any thread.

        The next attempt finds `details` in `last_heartbeat`; None keeps those of the previous
        heartbeat. They are sent with the worker's own heartbeat, every few seconds.

        Raises asyncio.CancelledError in a thread whose attempt is cancelled (an async activity
        is cancelled where it awaits), and PayloadError for details that cannot be stored.
        """
        self.beaten_at = time.monotonic()
        if details is not None:
            self.details = encode(details)
        if self.cancelled and not self._is_async:
            raise asyncio.CancelledError("the activity is cancelled: its result is not wanted")

    def set_units(self, units: float) -> None:
        """Say how many units of its rates the attempt has really used: those count instead.

        It is recorded with the end of the attempt; a number that is said later replaces an earlier
        one. What a call has used more counts from then on, what it has used less can be used by
        others. Raises InvalidInput unless it is a number of 0 or more.
        """
        self.used_units = check_units("the units of an attempt", units)

    def complete_later(self) -> NoReturn:
        """End the attempt without a result: another program sends the result, with the `token`.

        `start_to_close` continues to count. If it is over first, the activity is tried again.
        """
        raise CompletedLater

    @property
    def unsent(self) -> str | None:
        """The details that the database does not have yet, None if it has the newest."""
        return self.details if self.details is not self._stored else None

    def mark_sent(self, details: str) -> None:
        """Remember the details that the database has now."""
        self._stored = details


def current_activity() -> ActivityContext:
    """Return the context of the activity that is running.

    ```python
    @app.activity(queue="media", heartbeat_timeout="30s")
    def convert(path: str) -> None:
        activity = current_activity()
        for page in range(activity.read_heartbeat(int) or 0, count_pages(path)):
            convert_page(path, page)
            activity.heartbeat(page + 1)
    ```

    Raises LookupError outside of an activity, also if one is called as a plain function.
    """
    context = _activity.get()
    if context is None:
        raise LookupError(
            "no activity of a run is running here: call current_activity() in the code of an "
            "activity that a workflow has called (a step has current_step()), and pass the result "
            "to your own threads. An activity that is called as a plain function has none: test "
            "it through a workflow, in holdfast.testing.Environment"
        )
    return context
