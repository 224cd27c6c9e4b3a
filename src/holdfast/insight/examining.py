"""Run all checks of `holdfast doctor`: one that cannot be made has failed, and hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast.errors import DatabaseError
from holdfast.insight.alerts import check_alerts
from holdfast.insight.builds import check_builds
from holdfast.insight.doctor import (
    check_apps,
    check_dead_rows,
    check_hints,
    check_notifications,
    check_pauses,
    check_reads,
    check_rights,
    check_schema,
    check_slots,
    check_stuck,
    check_unserved,
    check_workers,
)
from holdfast.insight.findings import Finding
from holdfast.insight.limits import check_limits
from holdfast.insight.queues import check_queues
from holdfast.insight.retention import check_sweeper
from holdfast.insight.schedules import check_schedules
from holdfast.insight.server import (
    check_clock,
    check_connections,
    check_durability,
    check_server,
    check_settings,
)
from holdfast.insight.stats import check_failures
from holdfast.insight.topics import check_deliveries
from holdfast.insight.transactions import check_transactions
from holdfast.store.port import Store
from holdfast.store.postgres.errors import FOREIGN, translate
from holdfast.store.shared_calls import BriefLocks

if TYPE_CHECKING:
    from holdfast.database.schema import Connection

_LOCK_MILLIS: Final = 2_000  # for each lock that a call of the store meets
_ANSWER_SECONDS: Final = 10.0
_NEEDED: Final = ("schema", "rights")

_Check: TypeAlias = Callable[..., Awaitable[Finding | list[Finding]]]

_OF_SERVER: Final[dict[str, _Check]] = {
    "database": check_server,
    "durability": check_durability,
    "settings": check_settings,
    "connections": check_connections,
    "clock": check_clock,
    "slots": check_slots,
}
_OF_SCHEMA: Final[dict[str, _Check]] = {
    "transactions": check_transactions,
    "schema": check_schema,
    "rights": check_rights,
    "stuck": check_stuck,
    "vacuum": check_dead_rows,
}
_OF_STORE: Final[dict[str, _Check]] = {
    "apps": check_apps,
    "workers": check_workers,
    "handlers": check_unserved,
    "pauses": check_pauses,
    "sweeper": check_sweeper,
    "limits": check_limits,
    "schedules": check_schedules,
    "message queues": check_queues,
    "deliveries": check_deliveries,
    "failures": check_failures,
    "alerts": check_alerts,
    "builds": check_builds,
    "notify": check_notifications,
    "redis": check_hints,
    "reads": check_reads,
}


async def examine(
    connection: Connection, open_store: Callable[[], Awaitable[Store]], schema: str
) -> Sequence[Finding]:
    """Run all checks; without the schema, or the rights on it, those that need it are left out."""
    findings: list[Finding] = []
    for name, check in _OF_SERVER.items():
        findings += await _found(name, partial(check, connection))
    for name, check in _OF_SCHEMA.items():
        findings += await _found(name, partial(check, connection, schema))
        if name in _NEEDED and findings[-1].level == "fail":
            return findings
    try:
        store = await open_store()
    except DatabaseError as error:
        return [*findings, Finding("store", "fail", str(error))]
    with BriefLocks(_LOCK_MILLIS):
        for name, check in _OF_STORE.items():
            findings += await _found(name, partial(check, store))
    return findings


async def _found(name: str, check: _Check) -> list[Finding]:
    """Return what a check finds, or that it failed because the database did not let it be made."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            found = await check()
    except TimeoutError:
        what = (
            f"no answer for {_ANSWER_SECONDS:g} s: another transaction may hold what is asked for"
        )
        return [Finding(name, "fail", what)]
    except DatabaseError as error:
        return [Finding(name, "fail", str(error))]
    except FOREIGN as error:
        return [Finding(name, "fail", str(translate(error)))]
    return found if isinstance(found, list) else [found]
