"""Sweeps: sign them on, and say what remains when they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.errors import InvalidInput
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.rows import NEVER
from holdfast.store.memory.workers import hear
from holdfast.types import WorkerInfo

_LONGEST: Final = 86_400


class MemorySweeps(Part):
    async def begin_sweep(self, info: WorkerInfo, *, seconds: float) -> None:
        if not 0 < seconds <= _LONGEST:
            raise InvalidInput(f"a sweep lasts between 0 and {_LONGEST} seconds, not {seconds:g}")
        async with self._transaction() as (tables, now):
            hear(tables, now, info, 0)
            tables.sweeps_end[info.worker_id] = now + to_micros(seconds)

    async def next_due(
        self, worker_id: str, queues: Sequence[str], handlers: Sequence[str]
    ) -> tuple[int, int | None]:
        async with self._transaction() as (tables, now):
            moments = [
                task.visible_at
                for task in tables.tasks.values()
                if task.worker is None
                and task.queue in queues
                and task.handler in handlers
                and task.visible_at < NEVER
                and not tables.is_paused(task)
            ]
            moments += [
                at
                for each, at in tables.sweeps_end.items()
                if each != worker_id and each in tables.workers
            ]
            return now, min(moments, default=None)
