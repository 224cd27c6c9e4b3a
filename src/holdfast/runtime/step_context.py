"""What the code inside a step can ask about its own execution."""

from __future__ import annotations

import contextvars
import threading
from typing import Final
from uuid import UUID

from holdfast.runtime.calls import Call, RunInfo


class StepContext:
    """One attempt of a step, as its own code sees it.

    `id` is the same at each attempt of this call, and no other call's: hand it to other systems
    as an idempotency key. `attempt` counts from 1.
    """

    __slots__ = ("_call", "_cancelled", "_info", "attempt")

    def __init__(self, info: RunInfo, call: Call) -> None:
        self._info, self._call = info, call
        self.attempt: Final[int] = call.attempt
        self._cancelled: threading.Event | None = None

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        return self._info.run_id

    @property
    def workflow(self) -> str:
        """The workflow's name."""
        return self._info.name

    @property
    def version(self) -> int:
        """The workflow's version."""
        return self._info.version

    @property
    def step(self) -> str:
        """The step's name."""
        return self._call.name

    @property
    def key(self) -> str:
        """The call's key in the run's log."""
        return self._call.key

    @property
    def id(self) -> str:
        """The call's own id, the same at each attempt."""
        return self._call.id

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for this attempt any more. Look at it in long synchronous steps."""
        return self._cancelled is not None and self._cancelled.is_set()

    def wait_cancelled(self, seconds: float) -> bool:
        """Wait in a thread until the attempt is cancelled or the time is over; say which."""
        return self._event().wait(seconds)

    def cancel(self) -> None:
        """Tell the attempt that nobody waits for it. Safe from any thread."""
        self._event().set()

    def _event(self) -> threading.Event:
        with _creating:
            if self._cancelled is None:
                self._cancelled = threading.Event()
            return self._cancelled


_creating = threading.Lock()
_current: contextvars.ContextVar[StepContext | None] = contextvars.ContextVar(
    "holdfast_step", default=None
)


def current_step() -> StepContext:
    """Return the context of the step that is running.

    ```python
    @app.step
    def charge(order: Order) -> Receipt:
        return gateway.charge(order.total, idempotency_key=current_step().id)
    ```

    Raises LookupError outside of a step, also where a step is called as a plain function.
    """
    context = _current.get()
    if context is None:
        raise LookupError("no step of a run is running here")
    return context


bind_step: Final = _current.set  # in the current contextvars context
