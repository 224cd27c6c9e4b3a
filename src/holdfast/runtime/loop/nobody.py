"""Who makes the calls of code whose run is closed: nobody."""

from __future__ import annotations

from typing import Final, NoReturn

from holdfast.runtime.loop.tasks import Evicted


class Nobody:
    """Ends what still calls."""

    def call_step(self, *_: object) -> NoReturn:
        """Raise Evicted."""
        raise Evicted

    call_activity = call_workflow = call_step


NOBODY: Final = Nobody()
