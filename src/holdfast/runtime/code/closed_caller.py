"""Durable calls that code makes while its run is being closed: each raises, to end the code."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from holdfast.definitions.activities import Activity
from holdfast.definitions.caller import Args, Kwargs
from holdfast.definitions.startable import Startable
from holdfast.definitions.steps import Step
from holdfast.runtime.loop.tasks import Evicted


class ClosedCaller:
    """The caller of a closed run: each call raises, which ends the code that makes it."""

    def call_step(self, step: Step[..., object], leaf: str, args: Args, kwargs: Kwargs) -> NoReturn:
        """Raise Evicted."""
        raise Evicted

    def call_activity(
        self, activity: Activity[..., object], args: Args, kwargs: Kwargs
    ) -> NoReturn:
        """Raise Evicted."""
        raise Evicted

    def call_startable(
        self, startable: Startable[Any, object], args: Args, kwargs: Kwargs
    ) -> NoReturn:
        """Raise Evicted."""
        raise Evicted


CLOSED: Final = ClosedCaller()
