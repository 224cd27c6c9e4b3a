"""Engine time for the in-memory store: a clock that tests move, and the machine's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeAlias

Clock: TypeAlias = Callable[[], int]

EPOCH: Final = 1_767_225_600_000_000  # 2026-01-01 00:00 UTC: virtual time starts here


def to_micros(seconds: float) -> int:
    """Return a duration in microseconds."""
    return round(seconds * 1_000_000)


def wall_clock() -> int:
    """Return the machine's time in microseconds since 1970 UTC."""
    return time.time_ns() // 1_000


class VirtualClock:
    """A clock that stands still until it is moved, and never goes back.

    >>> clock = VirtualClock(0)
    >>> clock.advance(1.5)
    >>> clock()
    1500000
    """

    def __init__(self, start_at: int = EPOCH) -> None:
        self._now = start_at

    def __call__(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on by a duration."""
        self.advance_to(self._now + to_micros(seconds))

    def advance_to(self, at: int) -> None:
        """Move on to a moment; one that has passed changes nothing."""
        self._now = max(self._now, at)
