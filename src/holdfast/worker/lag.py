"""How long the event loop takes to get to a call from outside: more than an instant if code blocks
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable


class LoopLag:
    """Measures the way through an event loop, now and then, from another thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, 0.0
        self._sent_at: float | None = None  # of a call that the loop has not got to

    def measure(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send a call through the loop, unless one is under way. Safe from any thread."""
        if self._sent_at is None:
            self._sent_at = self._clock()
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has stopped
                loop.call_soon_threadsafe(self._arrived)

    def _arrived(self) -> None:
        if self._sent_at is not None:
            self._last, self._sent_at = self._clock() - self._sent_at, None

    @property
    def seconds(self) -> float:
        """How long the last call took; longer if one is under way for longer. From any thread."""
        sent_at = self._sent_at
        return self._last if sent_at is None else max(self._last, self._clock() - sent_at)
