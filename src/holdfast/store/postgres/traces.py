"""Traces: ends of runs whose spans are to be written."""

from __future__ import annotations

from uuid import UUID

from holdfast.store.postgres.database import Part


class PostgresTraces(Part):
    async def take_ends(self, *, limit: int = 100) -> list[UUID]:
        taken: list[UUID] = await self._database.value("take_ends", limit)
        return taken
