"""What starts, limits, queues and topics leave to be done: keys to free, rows to delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.errors import DatabaseError
from holdfast.worker.services.service import Service

_BATCH: Final = 1_000
_LEAST_BATCH: Final = 100
_LARGE_BATCH: Final = 10_000  # with each, all queues or all subscriptions are looked at, too


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
    _intervals = 8  # nobody waits for it

    async def run_once(self) -> None:
        """Delete some; continue soon if there may be more."""
        if await self._store.expire_start_keys(limit=_BATCH) >= _BATCH:
            self.wake()


class UnusedLimits(Service):
    """Delete what counts no longer for limits. Claims do that for the keys that they look at."""

    duty = "limits"
    _intervals = 8  # nobody waits for it

    async def run_once(self) -> None:
        """Delete some rows; continue soon if there may be more."""
        if await self._store.sweep_limits(limit=_BATCH) >= _BATCH:
            self.wake()


class Deleting(Service):
    """Delete old rows in large batches, and in smaller ones after one that took too long.

    Kept messages of megabytes take longer than a call may.
    """

    _size = _LARGE_BATCH

    async def _delete(self, sweep: Callable[..., Awaitable[int]]) -> None:
        """Delete a batch; continue soon if there may be more."""
        try:
            deleted = await sweep(limit=self._size)
        except DatabaseError:
            self._size = max(self._size // 10, _LEAST_BATCH)
            raise
        if deleted >= self._size:
            self.wake()
        self._size = min(2 * self._size, _LARGE_BATCH)


class QueueUpkeep(Deleting):
    """Give back what is beyond its visibility, and delete what means nothing any more.

    Receives do the first for their own queue, at once.
    """

    duty = "queues"
    _intervals = 2  # a queue that is read needs none
    _longest_seconds = 60.0  # nobody says what deleted queues have left

    async def run_once(self) -> None:
        """Do some of both; continue soon if there may be more."""
        returned, _ = await self._store.return_expired(limit=_BATCH)
        if returned >= _BATCH:
            self.wake()
        await self._delete(self._store.sweep_queues)


class OldEvents(Deleting):
    """Delete ids of published events, and what subscriptions that are gone have left."""

    _seconds = _first_seconds = 30.0

    async def run_once(self) -> None:
        """Delete some rows; continue soon if there may be more."""
        await self._delete(self._store.sweep_topics)
