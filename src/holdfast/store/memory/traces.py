"""Traces: ends of runs whose spans are to be written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from holdfast.store.memory.database import Part
from holdfast.store.memory.tables import Tables

_KEPT: Final = 60_000_000
_LEFT: Final = 30_000_000


class MemoryTraces(Part):
    async def take_ends(self, *, limit: int = 100) -> list[UUID]:
        async with self._transaction() as (tables, now):
            if tables.traced_until <= now + _LEFT:
                tables.traced_until = now + _KEPT
            taken = sorted(tables.ends_to_trace)[:limit]
            tables.ends_to_trace.difference_update(taken)
            return taken


def keep_ends(tables: Tables, now: int, run_ids: Iterable[UUID]) -> None:
    """Keep runs that ended without a worker's commit, if workers write traces."""
    if tables.traced_until > now:
        tables.ends_to_trace.update(run_ids)
