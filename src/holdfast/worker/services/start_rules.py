"""What the rules of starts leave to be done: keys to free, and keys to delete."""

from __future__ import annotations

from typing import Final

from holdfast.worker.services.service import Service, ServiceContext

_BATCH: Final = 1_000
_SELDOM: Final = 8  # intervals: nobody waits for it


class FreedKeys(Service):
    """Let runs begin that wait for a singleton which ended while a row was locked."""

    duty = "singletons"

    async def run_once(self) -> None:
        """Free what can be freed now. What is still locked is left for the next time."""
        count = _BATCH
        while count == _BATCH:
            count, notices = await self._store.free_singletons(limit=_BATCH)
            self._notify(notices)


class OldKeys(Service):
    """Delete keys of debounces and throttles that have no meaning any more."""

    duty = "start keys"

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context, interval_seconds=_SELDOM * context.interval_seconds)

    async def run_once(self) -> None:
        """Delete some; continue soon if there may be more."""
        if await self._store.expire_start_keys(limit=_BATCH) >= _BATCH:
            self.due_at(self._clock.now())
