"""What a workflow's loop needs of the instance whose code runs on it: that it makes the calls."""

from __future__ import annotations

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
    """Who makes the calls of a run's code."""

    def call_step(self, step: Step[..., object], leaf: str, args: Args, kwargs: Kwargs) -> Called:
        """Call a step, which stands in the log under a leaf of the caller's choice."""
        ...

    def call_activity(self, activity: Activity[..., object], args: Args, kwargs: Kwargs) -> Called:
        """Call an activity."""
        ...

    def call_workflow(self, workflow: Workflow[Any, object], args: Args, kwargs: Kwargs) -> Called:
        """Call a workflow as a child."""
        ...
