"""What the heartbeat says of the duties: which of them may have something to do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from typing import Final

from holdfast.types import Duty

_BEATS: Final = 3  # an answer is used for so many intervals of the heartbeat


class Agenda:
    """Which duties may have something to do within seconds, as the last heartbeat said.

    So services that have nothing to do need no statements of their own. Without an answer of the
    last seconds nothing is known, and each service looks by itself.

    `other_releases` is True if a worker of another release may continue the runs of this one.
    """

    def __init__(self, *, heartbeat_seconds: float, silent_seconds: float) -> None:
        self.silent_seconds: Final = silent_seconds
        self._usable_seconds = _BEATS * heartbeat_seconds
        self._due: frozenset[str] = frozenset()
        self.other_releases = False
        self._told_at = -math.inf  # on the event loop's clock
        self._wakes: list[tuple[Duty, Callable[[], None]]] = []

    def watch(self, duty: Duty, wake: Callable[[], None]) -> None:
        """Call `wake` from now on when a heartbeat names a duty that the one before did not."""
        self._wakes.append((duty, wake))

    def tell(self, due: Collection[str]) -> None:
        """Take the answer of a heartbeat. Called on the worker's event loop."""
        before, self._due = self._due, frozenset(due)
        self.other_releases = "other releases" in self._due
        self._told_at = asyncio.get_running_loop().time()
        for duty, wake in self._wakes:
            if duty in self._due and duty not in before:
                wake()

    def rules_out(self, duty: Duty | None) -> bool:
        """Return True if a service with this duty has nothing to do now."""
        if duty is None or duty in self._due:
            return False
        return asyncio.get_running_loop().time() - self._told_at < self._usable_seconds
