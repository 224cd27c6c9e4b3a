"""Limits: set them, and read what waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import astuple

from holdfast.store.postgres.database import Part
from holdfast.store.postgres.rows import json_text, reader
from holdfast.types import LimitInfo, LimitKind, LimitRule, LimitScope, LimitWait

_read_rule = reader(LimitRule)
_read_limit = reader(LimitInfo, "rule")
_read_wait = reader(LimitWait, "rule")


class PostgresLimits(Part):
    async def set_limit(self, rule: LimitRule) -> bool:
        changed: bool = await self._database.value("set_limit", *astuple(rule))
        return changed

    async def remove_limit(
        self, scope: LimitScope, name: str, kind: LimitKind, key: str = ""
    ) -> bool:
        return bool(await self._database.value("remove_limit", scope, name, kind, key))

    async def declare_limits(self, app: str, rules: Sequence[LimitRule]) -> int:
        return int(await self._database.value("declare_limits", app, json_text(rules)))

    async def list_limits(self) -> list[LimitInfo]:
        return [
            _read_limit(row, rule=_read_rule(row))
            for row in await self._database.rows("list_limits")
        ]

    async def explain_limits(self, run_id: UUID) -> list[LimitWait]:
        return [
            _read_wait(row, rule=_read_rule(row))
            for row in await self._database.rows("explain_limits", run_id)
        ]

    async def sweep_limits(self, *, limit: int = 1000) -> int:
        return int(await self._database.value("sweep_limits", limit))
