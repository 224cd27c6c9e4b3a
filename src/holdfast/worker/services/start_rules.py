"""What the rules of starts leave to be done: keys of singletons that could not be freed at once."""

from __future__ import annotations

from typing import Final

from holdfast.worker.services.service import Service

_BATCH: Final = 1_000


class FreedSingletons(Service):
    """Let runs begin that wait for a singleton which ended while a row was locked."""

    async def run_once(self) -> None:
        """Free what can be freed now. What is still locked is left for the next time."""
        count = _BATCH
        while count == _BATCH:
            count, notices = await self._store.free_singletons(limit=_BATCH)
            self._notify(notices)
