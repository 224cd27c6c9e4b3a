"""What the rules of starts leave to be done: keys to free, and keys to delete."""

from __future__ import annotations

from typing import Final

from holdfast.worker.services.service import Service

_BATCH: Final = 1_000


class StartKeys(Service):
    """Let runs begin that wait for a singleton which ended while a row was locked.

    And delete keys of debounces and throttles that have no meaning any more, a batch each time.
    """

    async def run_once(self) -> None:
        """Free what can be freed now. What is still locked is left for the next time."""
        count = _BATCH
        while count == _BATCH:
            count, notices = await self._store.free_singletons(limit=_BATCH)
            self._notify(notices)
        await self._store.expire_start_keys(limit=_BATCH)
