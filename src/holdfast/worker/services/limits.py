"""What limits no longer need: rows that count no longer, for keys that are not used any more."""

from __future__ import annotations

from typing import Final

from holdfast.worker.services.service import Service

_BATCH: Final = 1_000


class UnusedLimits(Service):
    """Delete what counts no longer for limits. Claims do that for the keys that they look at."""

    async def run_once(self) -> None:
        """Delete some rows; the rest is left for the next time."""
        await self._store.sweep_limits(limit=_BATCH)
