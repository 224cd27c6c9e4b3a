"""What the code inside a step can ask about its own execution."""

from __future__ import annotations

import contextvars
from uuid import UUID

from holdfast.runtime.attempts.attempt_context import AttemptContext
from holdfast.runtime.code.calls import Call, RunInfo

_current: contextvars.ContextVar[StepContext | None] = contextvars.ContextVar(
    "holdfast_step", default=None
)


class StepContext(AttemptContext):
    """One attempt of a step, as its own code sees it.

    `id` is the same at each attempt of this call, and no other call's: hand it to other systems
    as an idempotency key. `attempt` counts from 1.
    """

    variable = _current

    __slots__ = ("_call", "_info")

    def __init__(self, info: RunInfo, call: Call) -> None:
        super().__init__(call.attempt)
        self._info, self._call = info, call

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
        raise LookupError(
            "no step of a run is running here: call current_step() in the code of a step that a "
            "workflow has called (an activity has current_activity()), and hand what it gives to "
            "threads of your own. A step called as a plain function has none: test it through a "
            "workflow, in holdfast.testing.Environment"
        )
    return context
