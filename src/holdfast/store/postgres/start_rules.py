"""The rules of starts: singletons, debounces, throttles."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.store.postgres.calls import Call, each_row, first_row, only_row, only_value
from holdfast.store.postgres.database import Part, read_notices
from holdfast.store.postgres.rows import reader
from holdfast.types import DeclaredRules, HeldKey, StartRules, StartWait

_read_rules = reader(StartRules)


class PostgresStartRules(Part):
    list_start_rules = each_row(
        lambda row: DeclaredRules(row["name"], row["version"], _read_rules(row))
    )
    list_start_keys = each_row(lambda row: HeldKey(**dict(row)))
    start_wait = first_row(lambda row: StartWait(*row))
    expire_start_keys: Call[int] = only_value()
    free_singletons = only_row(lambda found: (found["count"], read_notices(found["notices"])))

    async def declare_start_rules(self, rules: Sequence[DeclaredRules]) -> None:
        await self._database.row(
            "declare_start_rules",
            [each.name for each in rules],
            [each.version for each in rules],
            [each.rules and msgspec.json.encode(each.rules).decode() for each in rules],
        )
