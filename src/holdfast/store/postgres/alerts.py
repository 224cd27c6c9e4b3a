"""Alerts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.store.postgres.database import Part, read_notices
from holdfast.store.postgres.rows import reader
from holdfast.types import AlertChange, AlertInfo, AlertRule, DeclaredAlerts, Notice
from holdfast.types.work import SILENT_SECONDS

_read_change = reader(AlertChange)
_read_rule = reader(AlertRule)
_read_alert = reader(AlertInfo, "rule")


class PostgresAlerts(Part):
    async def declare_alerts(
        self, app: str, alerts: Sequence[AlertRule], *, starting: bool = False
    ) -> DeclaredAlerts:
        text = msgspec.json.encode(alerts).decode()
        row = await self._database.row("declare_alerts", app, text, starting)
        return DeclaredAlerts(tuple(row["added"] or ()), tuple(row["changed"] or ()))

    async def look_at_alerts(
        self, *, silent_seconds: float = SILENT_SECONDS, limit: int = 1_000
    ) -> tuple[list[AlertChange], list[Notice]]:
        rows = await self._database.rows("look_at_alerts", silent_seconds, limit)
        notices = read_notices(pair for row in rows for pair in row["notices"] or ())
        return [_read_change(row) for row in rows], notices

    async def list_alerts(self) -> list[AlertInfo]:
        return [
            _read_alert(row, rule=_read_rule(row))
            for row in await self._database.rows("list_alerts")
        ]
