"""What message queues need: what was in flight too long comes back, what is over is deleted."""

from __future__ import annotations

from typing import Final

from holdfast.worker.services.service import Service, ServiceContext

_BATCH: Final = 1_000
_SELDOM: Final = 2  # intervals: a queue that is read needs none


class QueueUpkeep(Service):
    """Give back what is beyond its visibility, and delete what means nothing any more.

    Receives do the first for their own queue, at once.
    """

    duty = "queues"
    _longest_seconds = 60.0  # nobody says what deleted queues have left

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context, interval_seconds=_SELDOM * context.interval_seconds)

    async def run_once(self) -> None:
        """Do some of both; the rest is left for the next time."""
        await self._store.return_expired(limit=_BATCH)
        await self._store.sweep_queues(limit=_BATCH)
