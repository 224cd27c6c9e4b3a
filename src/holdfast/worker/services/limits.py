"""What limits no longer need: rows that count no longer, for keys that are not used any more."""

from __future__ import annotations

from typing import Final

from holdfast.worker.services.service import Service, ServiceContext

_BATCH: Final = 1_000
_SELDOM: Final = 8  # intervals: nobody waits for it


class UnusedLimits(Service):
    """Delete what counts no longer for limits. Claims do that for the keys that they look at."""

    duty = "limits"

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context, interval_seconds=_SELDOM * context.interval_seconds)

    async def run_once(self) -> None:
        """Delete some rows; continue soon if there may be more."""
        if await self._store.sweep_limits(limit=_BATCH) >= _BATCH:
            self.due_at(self._clock.now())
