"""The rules of starts: singletons, debounces, throttles."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from holdfast.store.postgres.database import Part, read_notices
from holdfast.store.postgres.rows import reader
from holdfast.types import DeclaredRules, HeldKey, Notice, StartRules, StartWait

_read_rules = reader(StartRules)


class PostgresStartRules(Part):
    async def declare_start_rules(self, rules: Sequence[DeclaredRules]) -> None:
        await self._database.row(
            "declare_start_rules",
            [each.name for each in rules],
            [each.version for each in rules],
            [each.rules and msgspec.json.encode(each.rules).decode() for each in rules],
        )

    async def list_start_rules(self) -> list[DeclaredRules]:
        return [
            DeclaredRules(row["name"], row["version"], _read_rules(row))
            for row in await self._database.rows("list_start_rules")
        ]

    async def list_start_keys(self, name: str, *, limit: int = 100) -> list[HeldKey]:
        rows = await self._database.rows("list_start_keys", name, limit)
        return [HeldKey(**dict(row)) for row in rows]

    async def start_wait(self, run_id: UUID) -> StartWait | None:
        rows = await self._database.rows("start_wait", run_id)
        return StartWait(*rows[0]) if rows else None

    async def expire_start_keys(self, *, limit: int = 1000) -> int:
        return int(await self._database.value("expire_start_keys", limit))

    async def free_singletons(self, *, limit: int = 1000) -> tuple[int, list[Notice]]:
        row = await self._database.row("free_singletons", limit)
        return row["count"], read_notices(row["notices"])
