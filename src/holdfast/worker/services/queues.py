"""What message queues need: what was in flight too long comes back, what is over is deleted."""

from __future__ import annotations

from typing import Final

from holdfast.worker.services.service import Service

_BATCH: Final = 1_000


class QueueUpkeep(Service):
    """Give back what is beyond its visibility, and delete what means nothing any more.

    Receives do the first for their own queue, at once.
    """

    async def run_once(self) -> None:
        """Do some of both; the rest is left for the next time."""
        await self._store.return_expired(limit=_BATCH)
        await self._store.sweep_queues(limit=_BATCH)
