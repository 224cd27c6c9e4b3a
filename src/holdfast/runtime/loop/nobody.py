"""Who makes the calls of code whose run is closed: nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from holdfast.runtime.loop.tasks import Evicted

if TYPE_CHECKING:
    from holdfast.definitions.activities import Activity
    from holdfast.definitions.caller import Args, Kwargs
    from holdfast.definitions.steps import Step
    from holdfast.definitions.workflows import Workflow


class Nobody:
    """Ends the code that still calls."""

    def call_step(self, step: Step[..., object], leaf: str, args: Args, kwargs: Kwargs) -> NoReturn:
        """Raise Evicted."""
        raise Evicted

    def call_activity(
        self, activity: Activity[..., object], args: Args, kwargs: Kwargs
    ) -> NoReturn:
        """Raise Evicted."""
        raise Evicted

    def call_workflow(
        self, workflow: Workflow[Any, object], args: Args, kwargs: Kwargs
    ) -> NoReturn:
        """Raise Evicted."""
        raise Evicted


NOBODY: Final = Nobody()
