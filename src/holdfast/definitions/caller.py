"""Find the run whose workflow code is executing: inside one, a call is durable."""

from __future__ import annotations

from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeAlias

Args: TypeAlias = tuple[object, ...]
Kwargs: TypeAlias = Mapping[str, object]
Called: TypeAlias = Coroutine[object, None, Any]


class Caller(Protocol):
    """A run whose code calls steps, activities, workflows and flows.

    The parameters are typed Any because the classes of steps, activities and workflows use this
    one.
    """

    def call_step(self, step: Any, leaf: str, args: Args, kwargs: Kwargs) -> Called:
        """Call a step; `leaf` is the last part of the call's key in the log."""
        ...

    def call_activity(self, activity: Any, args: Args, kwargs: Kwargs) -> Called:
        """Schedule an activity at once, whether or not it is awaited."""
        ...

    def call_startable(self, startable: Any, args: Args, kwargs: Kwargs) -> Called:
        """Start a child run at once, whether or not it is awaited."""
        ...


def refuse_in_workflow(what: str, way_out: str = "do it in a step") -> None:
    """Make the run stuck whose workflow code is executing, if one is: it must not do this."""
    refuse = getattr(_get_running_loop(), "refuse", None)
    if refuse is not None:
        raise refuse(what, way_out)


def current_caller() -> Caller | None:
    """Return the run whose workflow code is executing, None outside of workflow code."""
    return getattr(_get_running_loop(), "caller", None)
