"""Send what the transactions of this shard have left for others, until it has arrived there."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.store.shards import Members, Pass
from holdfast.worker.services.service import Service, ServiceContext

_INTERVAL_SECONDS: Final = 5.0
_PAGE: Final = 500


class Forwarder(Service):
    """Sends signals and events to other shards, in the order in which they were left.

    Each is sent again until its shard has it, and carries an id by which that shard knows it: so
    it arrives once. A shard that is away holds up only what is for it.
    """

    _seconds = _INTERVAL_SECONDS

    def __init__(self, context: ServiceContext, shards: Members) -> None:
        super().__init__(context)
        self._shards = shards
        self._pass, self._began = Pass(shards), -_INTERVAL_SECONDS

    def notified(self, _: str) -> None:
        """Say that something was left."""
        self.wake()

    async def run_once(self) -> None:
        """Send all that is there."""
        now = asyncio.get_running_loop().time()
        if now - self._began >= _INTERVAL_SECONDS:  # until then what is held is not tried again
            self._pass, self._began = Pass(self._shards), now
        while page := await self._store.take_forwards(
            self._worker_id, held=self._pass.held, limit=_PAGE
        ):
            if done := await self._pass.send(page):
                await self._store.end_forwards(done)
