"""The part of the port for traces."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable


class TraceStore(Protocol):
    """Tells workers that write traces of ends that no worker's commit has made."""

    @readable
    async def take_ends(self, *, limit: int = 100) -> list[UUID]:
        """Take runs that have ended so: flows, and runs that were ended from outside.

        Each is given to one caller. They are kept for callers that have asked within the last
        half of a minute, and are not kept if nobody asks.
        """
        ...
