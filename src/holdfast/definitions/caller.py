"""Who makes the calls of the code that is running: a run calls durably, all else plainly."""

from __future__ import annotations

from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from holdfast.definitions.activities import Activity
    from holdfast.definitions.steps import Step
    from holdfast.definitions.workflows import Workflow

Args: TypeAlias = tuple[object, ...]
Kwargs: TypeAlias = Mapping[str, object]
Called: TypeAlias = Coroutine[object, None, Any]


class Caller(Protocol):
    """The run whose code calls."""

    def call_step(self, step: Step[..., object], leaf: str, args: Args, kwargs: Kwargs) -> Called:
        """Call a step, which stands in the log under a leaf of the caller's choice."""
        ...

    def call_activity(self, activity: Activity[..., object], args: Args, kwargs: Kwargs) -> Called:
        """Schedule an activity, awaited or not."""
        ...

    def call_workflow(self, workflow: Workflow[Any, object], args: Args, kwargs: Kwargs) -> Called:
        """Start a child run, awaited or not."""
        ...


def current_caller() -> Caller | None:
    """Return the run whose code is running, None outside of workflow code."""
    return getattr(_get_running_loop(), "caller", None)
