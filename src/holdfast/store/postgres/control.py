"""Pauses of runs, queues and workflows; runs that are rescheduled."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import astuple

from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres.calls import each_row, only_row
from holdfast.store.postgres.database import Part
from holdfast.store.postgres.external import read_delivered
from holdfast.store.postgres.rows import reader
from holdfast.types import Delivered, Notice, Pause, Reschedule, Scope


class PostgresControl(Part):
    pause_runs = only_row(read_delivered)
    resume_runs = only_row(read_delivered)
    list_pauses = each_row(reader(Pause))

    async def reschedule_runs(
        self,
        run_ids: Sequence[UUID],
        change: Reschedule,
        *,
        reason: str | None = None,
        by: str | None = None,
    ) -> Delivered:
        row = await self._database.row("reschedule_runs", run_ids, *astuple(change), reason, by)
        return read_delivered(row)

    async def set_pause(
        self, scope: Scope, name: str, *, paused: bool, reason: str | None = None
    ) -> tuple[bool, list[Notice]]:
        row = await self._database.row("set_pause", scope, name, paused, reason)
        queues: list[str] = row["queues"] or []
        return row["changed"], [Notice(WORK_TOPIC, queue) for queue in queues]
