"""The tables of the store, under one lock, and its clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from holdfast.errors import ShardsChanged
from holdfast.store.memory.clock import Clock
from holdfast.store.memory.tables import Nesting, Tables
from holdfast.store.port.shards import digest_of, known_shards


class Part:
    """The base of the store's parts: what they all read and change.

    What a method does is said in the port; here only what is this store's own.
    """

    def __init__(self, clock: Clock, nesting: Nesting) -> None:
        self._clock = clock
        self._tables = Tables(nesting)
        self._lock = threading.RLock()

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[tuple[Tables, int], None]:
        """Hold the tables at one moment. Others run first, as they would with a real database.

        Raises ShardsChanged for a caller that does not know what the shards are now.
        """
        await asyncio.sleep(0)
        with self._lock:
            known, shard = known_shards.get(), self._tables.shard
            if known is not None and shard is not None:
                is_new = len(shard.history) > known.changes
                if is_new or known.ruled != digest_of(self._tables.start_rules):
                    raise ShardsChanged("the caller does not know what the shards are now")
            yield self._tables, self._clock()
