"""Log that the database cannot be reached, while all parts of a worker fail again and again.

There is a line at once, one a minute after that, and one when the database answers. The other
failures meanwhile are logged at the level of debugging.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

from holdfast.errors import DatabaseUnavailable

_QUIET_SECONDS: Final = 60.0


class Outage:
    """The outage of a process, if there is one. A minute without a failure ends it, too.

    Safe from any thread: at worst there is one line more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._failed_at = self._said_at = -math.inf

    def tell(self, logger: logging.Logger, what: str, error: Exception) -> None:
        """Warn that something failed and is repeated."""
        level, text = logging.WARNING, "%s: %s"
        if isinstance(error, DatabaseUnavailable):
            now = self._clock()
            if self._began is None or now >= self._failed_at + _QUIET_SECONDS:
                self._began = now
            self._failed_at = now
            if now >= self._said_at + _QUIET_SECONDS:
                self._said_at = now
                text += "; failures of this kind are logged once a minute"
            else:
                level = logging.DEBUG
        logger.log(level, text, what, error)

    def end(self, logger: logging.Logger) -> None:
        """Log that the database answers, if it did not before."""
        if self._began is not None:
            seconds = self._clock() - self._began
            logger.info("the database answers again, after %.0f s", seconds)
            self._began, self._said_at = None, -math.inf


OUTAGE: Final = Outage()
