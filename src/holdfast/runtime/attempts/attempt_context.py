"""What the contexts of steps and activities have in common: an attempt that may be cancelled."""

from __future__ import annotations

import contextvars
import threading
from typing import Any, ClassVar, Final

_creating = threading.Lock()


class AttemptContext:
    """One attempt, as its own code sees it. `attempt` counts from 1.

    `variable` is where the code finds the one that it runs in.
    """

    variable: ClassVar[contextvars.ContextVar[Any]]

    __slots__ = ("_cancelled", "attempt")

    def __init__(self, attempt: int) -> None:
        self.attempt: Final[int] = attempt
        self._cancelled: threading.Event | None = None

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for this attempt any more. Look at it in long synchronous code."""
        return self._cancelled is not None and self._cancelled.is_set()

    def wait_cancelled(self, seconds: float) -> bool:
        """Wait in a thread until the attempt is cancelled or the time is over; say which."""
        return self._event().wait(seconds)

    def cancel(self) -> None:
        """Tell the attempt that nobody waits for it. Safe from any thread."""
        self._event().set()

    def _event(self) -> threading.Event:
        with _creating:
            if self._cancelled is None:
                self._cancelled = threading.Event()
            return self._cancelled
