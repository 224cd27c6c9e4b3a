"""Pauses of runs, queues and workflows; runs that are rescheduled."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import astuple

from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres.database import Part
from holdfast.store.postgres.external import read_delivered
from holdfast.types import Delivered, Notice, Pause, Reschedule, Scope


class PostgresControl(Part):
    async def pause_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
    ) -> Delivered:
        return read_delivered(await self._database.row("pause_runs", run_ids, reason, by))

    async def resume_runs(self, run_ids: Sequence[UUID], *, by: str | None = None) -> Delivered:
        return read_delivered(await self._database.row("resume_runs", run_ids, by))

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

    async def list_pauses(self) -> list[Pause]:
        found = await self._database.rows("list_pauses")
        return [Pause(row["scope"], row["name"], row["reason"], row["paused_at"]) for row in found]
