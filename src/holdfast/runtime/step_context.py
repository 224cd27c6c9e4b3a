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

    __slots__ = ("_cancelled", "attempt", "id", "key", "run_id", "step", "version", "workflow")

    def __init__(self, info: RunInfo, call: Call) -> None:
        self.run_id: Final[UUID] = info.run_id
        self.workflow: Final[str] = info.name
        self.version: Final[int] = info.version
        self.key: Final[str] = call.key
        self.id: Final[str] = call.id
        self.step: Final[str] = call.name
        self.attempt: Final[int] = call.attempt
        self._cancelled: threading.Event | None = None

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


def bind_step(context: StepContext) -> None:
    """Make `context` the running step's in the current contextvars context."""
    _current.set(context)
