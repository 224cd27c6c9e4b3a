"""What the code inside an activity can ask and say about its own execution."""

from __future__ import annotations

import asyncio
import contextvars
import time
from typing import NoReturn
from uuid import UUID

import msgspec

from holdfast.codec import encode
from holdfast.names import split_name
from holdfast.runtime.attempts.attempt_context import AttemptContext
from holdfast.types import JSON, ClaimedTask


class CompletedLater(BaseException):
    """The attempt ends, and its result comes from outside; not an error, so never caught as one."""


_current: contextvars.ContextVar[ActivityContext | None] = contextvars.ContextVar(
    "holdfast_activity", default=None
)


class ActivityContext(AttemptContext):
    """One attempt of an activity, as its own code sees it.

    `id` is the same at each attempt of this call, and no other call's: hand it to other systems
    as an idempotency key. `attempt` counts from 1. `token` is that of this attempt alone: who has
    it may complete or fail the activity from outside.
    """

    variable = _current

    __slots__ = ("_is_async", "_known", "_task", "beaten_at", "details")

    def __init__(self, task: ClaimedTask, *, is_async: bool) -> None:
        super().__init__(task.attempts)
        self._task, self._is_async = task, is_async
        self.details: str | None = None  # what the last heartbeat said, as JSON text
        self._known: str | None = None  # of that, what the database knows
        self.beaten_at = time.monotonic()

    @property
    def run_id(self) -> UUID:
        """The id of the run that wants the activity."""
        return self._task.run_id

    @property
    def name(self) -> str:
        """The activity's name."""
        return split_name(self._task.name)[1]

    @property
    def key(self) -> str:
        """The call's key in the run's log."""
        return self._task.key

    @property
    def id(self) -> str:
        """The call's own id, the same at each attempt."""
        return f"{self._task.run_id}/{self._task.key}"

    @property
    def token(self) -> str:
        """What completes or fails this attempt from outside."""
        return f"{self._task.run_id}:{self._task.lease_no}:{self._task.key}"

    @property
    def last_heartbeat(self) -> JSON:
        """What the attempts before this one said last in a heartbeat, None if nothing."""
        text = self._task.heartbeat
        return None if text is None else msgspec.json.decode(text)

    def heartbeat(self, details: object = None) -> None:
        """Say that the attempt goes on, and how far it is; cheap, and safe from any thread.

        The next attempt finds `details` in `last_heartbeat`; None leaves what was said before.
        They are sent along with the worker's own heartbeat, every few seconds.

        Raises asyncio.CancelledError in a thread whose attempt is cancelled (an async activity
        is cancelled where it awaits), and PayloadError for details that cannot be stored.
        """
        self.beaten_at = time.monotonic()
        if details is not None:
            self.details = encode(details)
        if self.cancelled and not self._is_async:
            raise asyncio.CancelledError("nobody waits for this activity any more")

    def complete_later(self) -> NoReturn:
        """End the attempt without a result: it comes from outside, with the `token`.

        The activity's `start_to_close` goes on to count, and a retry follows when it is over.
        """
        raise CompletedLater

    @property
    def news(self) -> str | None:
        """Details that the database does not know yet."""
        return self.details if self.details is not self._known else None

    def known(self, details: str) -> None:
        """Note what the database knows now."""
        self._known = details


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

    Raises LookupError outside of an activity, also where it is called as a plain function.
    """
    context = _current.get()
    if context is None:
        raise LookupError(
            "no activity of a run is running here: call current_activity() in the code of an "
            "activity that a workflow has called (a step has current_step()), and hand what it "
            "gives to threads of your own. An activity called as a plain function has none: test "
            "it through a workflow, in holdfast.testing.Environment"
        )
    return context
