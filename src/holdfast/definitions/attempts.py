"""What the code of a step or an activity can ask and say about its own attempt."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, NoReturn, Protocol
from uuid import UUID

import msgspec

from holdfast.codec import encode
from holdfast.names import split_name
from holdfast.types import JSON, ClaimedTask

_creating = threading.Lock()


class AttemptContext:
    """One attempt, as its own code sees it. `attempt` counts from 1.

    `variable` is the context variable in which the code finds its attempt.
    """

    variable: ClassVar[contextvars.ContextVar[Any]]

    __slots__ = ("_cancelled", "attempt")

    def __init__(self, attempt: int) -> None:
        self.attempt: Final[int] = attempt
        self._cancelled: threading.Event | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the attempt is cancelled: its result is not wanted. For long synchronous code."""
        return self._cancelled is not None and self._cancelled.is_set()

    def wait_cancelled(self, seconds: float) -> bool:
        """Wait in a thread for at most `seconds`; return True once the attempt is cancelled."""
        return self._event().wait(seconds)

    def cancel(self) -> None:
        """Tell the attempt that it is cancelled. Safe from any thread."""
        self._event().set()

    def _event(self) -> threading.Event:
        with _creating:
            if self._cancelled is None:
                self._cancelled = threading.Event()
            return self._cancelled


# Steps


class StepRun(Protocol):
    """The run that calls a step."""

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        ...

    @property
    def name(self) -> str:
        """The workflow's name."""
        ...

    @property
    def version(self) -> int:
        """The workflow's version."""
        ...

    @property
    def key(self) -> str | None:
        """The key that the run was started with, None without one."""
        ...

    @property
    def headers(self) -> Mapping[str, str] | None:
        """The headers that the run was started with, None without any."""
        ...


class StepCall(Protocol):
    """One call of a step in a run."""

    @property
    def key(self) -> str:
        """The call's key in the run's log."""
        ...

    @property
    def name(self) -> str:
        """The step's name."""
        ...

    @property
    def id(self) -> str:
        """The call's own id, the same at each attempt."""
        ...

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        ...


_step: contextvars.ContextVar[StepContext | None] = contextvars.ContextVar(
    "holdfast_step", default=None
)


class StepContext(AttemptContext):
    """One attempt of a step, as its own code sees it.

    `idempotency_key` belongs to this call alone and is the same at each attempt: send it along to
    other systems. `attempt` counts from 1.
    """

    variable = _step

    __slots__ = ("_call", "_run")

    def __init__(self, run: StepRun, call: StepCall) -> None:
        super().__init__(call.attempt)
        self._run, self._call = run, call

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        return self._run.run_id

    @property
    def run_key(self) -> str | None:
        """The key that the run was started with, None without one."""
        return self._run.key

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the run was started with."""
        return MappingProxyType(self._run.headers or {})

    @property
    def workflow(self) -> str:
        """The workflow's name."""
        return self._run.name

    @property
    def version(self) -> int:
        """The workflow's version."""
        return self._run.version

    @property
    def step(self) -> str:
        """The step's name."""
        return self._call.name

    @property
    def key(self) -> str:
        """The call's key in the run's log."""
        return self._call.key

    @property
    def idempotency_key(self) -> str:
        """The same text at each attempt of this call, and at no attempt of another call."""
        return self._call.id


def current_step() -> StepContext:
    """Return the context of the step that is running.

    ```python
    @app.step
    def charge(order: Order) -> Receipt:
        return gateway.charge(order.total, idempotency_key=current_step().idempotency_key)
    ```

    Raises LookupError outside of a step, also if a step is called as a plain function.
    """
    context = _step.get()
    if context is None:
        raise LookupError(
            "no step of a run is running here: call current_step() in the code of a step that a "
            "workflow has called (an activity has current_activity()), and hand what it gives to "
            "threads of your own. A step called as a plain function has none: test it through a "
            "workflow, in holdfast.testing.Environment"
        )
    return context


# Activities


class CompletedLater(BaseException):
    """The attempt ends, and its result is sent in from outside. Not an error, so never caught."""


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

    __slots__ = ("_is_async", "_stored", "_task", "beaten_at", "details")

    def __init__(self, task: ClaimedTask, *, is_async: bool) -> None:
        super().__init__(task.attempts)
        self._task, self._is_async = task, is_async
        self.details: str | None = None  # of the last heartbeat, as JSON text
        self._stored: str | None = None  # the details that the database has
        self.beaten_at = time.monotonic()

    @property
    def run_id(self) -> UUID:
        """The id of the run that called the activity."""
        return self._task.run_id

    @property
    def run_key(self) -> str | None:
        """The key that the run was started with, None without one."""
        return self._task.run_key

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the run was started with."""
        return MappingProxyType(self._task.headers or {})

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
    def token(self) -> str:
        """The token that completes or fails this attempt from outside."""
        return f"{self._task.run_id}:{self._task.lease_no}:{self._task.key}"

    @property
    def last_heartbeat(self) -> JSON:
        """The details of the last heartbeat of the attempts before this one, None if none."""
        text = self._task.heartbeat
        return None if text is None else msgspec.json.decode(text)

    def heartbeat(self, details: object = None) -> None:
        """Say that the attempt makes progress, and how far it is; cheap, safe from any thread.

        The next attempt finds `details` in `last_heartbeat`; None keeps those of the heartbeat
        before. They are sent with the worker's own heartbeat, every few seconds.

        Raises asyncio.CancelledError in a thread whose attempt is cancelled (an async activity
        is cancelled where it awaits), and PayloadError for details that cannot be stored.
        """
        self.beaten_at = time.monotonic()
        if details is not None:
            self.details = encode(details)
        if self.cancelled and not self._is_async:
            raise asyncio.CancelledError("the activity is cancelled: its result is not wanted")

    def complete_later(self) -> NoReturn:
        """End the attempt without a result: another program sends it, with the `token`.

        The activity's `start_to_close` keeps running, and a retry follows when it is over.
        """
        raise CompletedLater

    @property
    def unsent(self) -> str | None:
        """The details that the database does not have yet, None if it has the newest."""
        return self.details if self.details is not self._stored else None

    def mark_sent(self, details: str) -> None:
        """Note the details that the database has now."""
        self._stored = details


def current_activity() -> ActivityContext:
    """Return the context of the activity that is running.

    ```python
    @app.activity(queue="media", heartbeat_timeout="30s")
    def convert(path: str) -> None:
        activity = current_activity()
        for page in range(activity.last_heartbeat or 0, count_pages(path)):
            convert_page(path, page)
            activity.heartbeat(page + 1)
    ```

    Raises LookupError outside of an activity, also if one is called as a plain function.
    """
    context = _activity.get()
    if context is None:
        raise LookupError(
            "no activity of a run is running here: call current_activity() in the code of an "
            "activity that a workflow has called (a step has current_step()), and hand what it "
            "gives to threads of your own. An activity called as a plain function has none: test "
            "it through a workflow, in holdfast.testing.Environment"
        )
    return context
