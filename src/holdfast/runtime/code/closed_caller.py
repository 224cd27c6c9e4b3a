"""Durable calls that code makes while its run is being closed: each raises, to end the code."""

from __future__ import annotations

from typing import Final, NoReturn

from holdfast.runtime.loop.tasks import Evicted


class ClosedCaller:
    """The caller of a closed run: each call raises, which ends the code that makes it."""

    def call_step(self, *_: object, **__: object) -> NoReturn:
        """Raise Evicted."""
        raise Evicted

    call_activity = call_startable = call_step


CLOSED: Final = ClosedCaller()
