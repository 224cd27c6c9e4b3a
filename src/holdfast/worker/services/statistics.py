"""Statistics by minute that get older: merged, and deleted at last."""

from __future__ import annotations

from typing import Final

from holdfast.worker.services.service import Service, ServiceContext

_INTERVAL_SECONDS: Final = 60.0
_BATCH: Final = 1_000


class OldStatistics(Service):
    """Merge what several workers wrote, then minutes to hours; delete what is very old."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context, interval_seconds=_INTERVAL_SECONDS)

    async def run_once(self) -> None:
        """Merge a batch; continue soon if there is more."""
        if await self._store.merge_stats(limit=_BATCH) >= _BATCH:
            self.due_at(self._clock.now())
