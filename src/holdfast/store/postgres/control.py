"""Changes of runs: pauses, moments and priorities, attributes and tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres.database import Part
from holdfast.store.postgres.external import read_delivered
from holdfast.store.postgres.rows import json_text
from holdfast.types import AttributeValue, Delivered, Notice, Pause, Reschedule, Scope

_decode: Final = msgspec.json.Decoder(dict[str, AttributeValue]).decode


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

    async def set_attributes(
        self, run_id: UUID, attributes: Mapping[str, AttributeValue | None]
    ) -> dict[str, AttributeValue] | None:
        [found] = await self._database.row("set_attributes", run_id, json_text(attributes))
        return None if found is None else _decode(found)

    async def set_tags(
        self,
        run_id: UUID,
        tags: Sequence[str] | None,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
    ) -> list[str] | None:
        found: list[str] | None = await self._database.value(
            "set_tags",
            run_id,
            None if tags is None else json_text(tags),
            json_text(add) if add else None,
            json_text(remove) if remove else None,
        )
        return found


def read_attributes(text: str | None) -> dict[str, AttributeValue]:
    """Return attributes of a row; empty for none."""
    return {} if text is None else _decode(text)
