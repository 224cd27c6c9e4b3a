"""Sweeps: sign them on, and say what remains when they end."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.postgres.database import Part
from holdfast.store.postgres.workers import identity
from holdfast.types import WorkerInfo


class PostgresSweeps(Part):
    async def begin_sweep(self, info: WorkerInfo, *, seconds: float) -> None:
        await self._database.row("begin_sweep", *identity(info), seconds, info.consumes)

    async def next_due(
        self, worker_id: str, queues: Sequence[str], handlers: Sequence[str]
    ) -> tuple[int, int | None]:
        row = await self._database.row("next_due", worker_id, queues, handlers)
        return row["now"], row["next_due_at"]
