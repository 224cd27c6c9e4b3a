"""Activities: functions that any worker of their queue runs, recorded like steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import ClassVar, ParamSpec, TypeVar

from holdfast.definitions.caller import current_caller
from holdfast.definitions.options import limit_seconds, option
from holdfast.definitions.recorded import Recorded, check_retry
from holdfast.definitions.signatures import read_signature
from holdfast.durations import Duration
from holdfast.errors import ConfigurationError
from holdfast.names import check_queue_name, full_name
from holdfast.retry import Retry
from holdfast.types import DEFAULT_QUEUE

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Activity(Recorded[P, R_co]):
    """A function that any worker of its queue runs, and whose result is recorded once per call.

    Calling it inside a workflow schedules it at once. Anywhere else (in tests, in a step) the call
    is an ordinary one. `full_name` is `app/name`, `handler` the name by which workers claim it.
    Times are in seconds, None for no limit: `start_to_close_seconds` for one attempt,
    `schedule_to_close_seconds` for all attempts and the pauses between them,
    `heartbeat_timeout_seconds` for the time between two heartbeats of an attempt.
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
        app: str | None = None,
    ) -> None:
        """Wrap `fn`; its own name, `Retry()`, no limits and an app of its name are the defaults.

        Raises ConfigurationError for a function that cannot be an activity, such as a method.
        """
        super().__init__(fn, name=name, retry=retry, timeout=start_to_close)
        if next(iter(read_signature(fn).parameters), None) == "self":
            raise ConfigurationError(
                f"{self} is a method, and the worker that runs it has no such "
                "instance: make it a function"
            )
        self.queue = self._check_queue(queue)
        self.schedule_to_close_seconds = self._limit(schedule_to_close, "schedule_to_close")
        self.heartbeat_timeout_seconds = self._limit(heartbeat_timeout, "heartbeat_timeout")
        self.full_name = full_name(self.name if app is None else app, self.name)

    @property
    def handler(self) -> str:
        """The name by which workers claim it, `app/name@0`: activities have no versions."""
        return f"{self.full_name}@0"

    @property
    def start_to_close_seconds(self) -> float | None:
        """The time that one attempt may take, None for no limit."""
        return self.timeout_seconds

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R_co]:
        caller = current_caller()
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
        return changed

    def _check_queue(self, queue: str) -> str:
        with option(str(self), "queue"):
            return check_queue_name(queue)

    def _limit(self, limit: Duration | None, name: str) -> float | None:
        return limit_seconds(limit, str(self), name)
