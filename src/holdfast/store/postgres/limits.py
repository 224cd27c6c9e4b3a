"""Limits: set them, and read what waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg
import msgspec

from holdfast.store.postgres.database import Part
from holdfast.types import LimitInfo, LimitKind, LimitRule, LimitScope, LimitWait


class PostgresLimits(Part):
    """Sets limits, and tells what waits for them."""

    async def set_limit(self, rule: LimitRule) -> bool:
        """Set a limit; see `LimitStore.set_limit`."""
        row = await self._database.row(
            "set_limit",
            rule.scope,
            rule.name,
            rule.kind,
            rule.most,
            rule.period_seconds,
            rule.key,
            rule.holds,
            rule.smooth,
        )
        return bool(row[0])

    async def remove_limit(
        self, scope: LimitScope, name: str, kind: LimitKind, key: str = ""
    ) -> bool:
        """Remove a limit; see `LimitStore.remove_limit`."""
        row = await self._database.row("remove_limit", scope, name, kind, key)
        return bool(row[0])

    async def declare_limits(self, app: str, rules: Sequence[LimitRule]) -> int:
        """Write what the code of an app declares; see `LimitStore.declare_limits`."""
        declared = msgspec.json.encode(rules).decode()
        row = await self._database.row("declare_limits", app, declared)
        return int(row[0])

    async def list_limits(self) -> list[LimitInfo]:
        """Return the limits; see `LimitStore.list_limits`."""
        return [
            LimitInfo(
                rule=_rule(row),
                is_declared=row["is_declared"],
                changed_at=row["changed_at"],
                held=row["held"],
                full_keys=row["full_keys"],
                waiting=row["waiting"],
                more_wait=row["more_wait"],
            )
            for row in await self._database.rows("list_limits")
        ]

    async def explain_limits(self, run_id: UUID) -> list[LimitWait]:
        """Return the limits that a run waits for; see `LimitStore.explain_limits`."""
        return [
            LimitWait(
                task_key=row["task_key"],
                waits_since=row["waits_since"],
                ahead=row["ahead"],
                rule=_rule(row),
                slot=row["slot"],
                held=row["held"],
                free=row["free"],
                next_at=row["next_at"],
            )
            for row in await self._database.rows("explain_limits", run_id)
        ]

    async def sweep_limits(self, *, limit: int = 1000) -> int:
        """Delete what counts no longer; see `LimitStore.sweep_limits`."""
        row = await self._database.row("sweep_limits", limit)
        return int(row[0])


def _rule(row: asyncpg.Record) -> LimitRule:
    return LimitRule(
        scope=row["scope"],
        name=row["name"],
        kind=row["kind"],
        most=row["most"],
        period_seconds=row["period_seconds"],
        key=row["key"],
        holds=row["holds"],
        smooth=row["smooth"],
    )
