"""Limits: set them, and read what waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import astuple

from holdfast.store.postgres.calls import Call, each_row, only_value
from holdfast.store.postgres.database import Part
from holdfast.store.postgres.rows import json_text, reader
from holdfast.types import LimitInfo, LimitRule, LimitWait

_read_rule = reader(LimitRule)
_read_limit = reader(LimitInfo, "rule")
_read_wait = reader(LimitWait, "rule")


class PostgresLimits(Part):
    remove_limit: Call[bool] = only_value()
    list_limits = each_row(lambda row: _read_limit(row, rule=_read_rule(row)))
    explain_limits = each_row(lambda row: _read_wait(row, rule=_read_rule(row)))
    sweep_limits: Call[int] = only_value()

    async def set_limit(self, rule: LimitRule) -> bool:
        changed: bool = await self._database.value("set_limit", *astuple(rule))
        return changed

    async def declare_limits(self, app: str, rules: Sequence[LimitRule]) -> int:
        return int(await self._database.value("declare_limits", app, json_text(rules)))
