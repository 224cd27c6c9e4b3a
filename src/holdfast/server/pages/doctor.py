"""`holdfast doctor` as a page."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.database.connection import connected
from holdfast.insight.doctor import (
    check_apps,
    check_pauses,
    check_unserved,
    check_workers,
    examine,
)
from holdfast.insight.findings import Finding
from holdfast.insight.limits import check_limits
from holdfast.insight.retention import check_sweeper
from holdfast.insight.schedules import check_schedules
from holdfast.server.pages.view import Page, View
from holdfast.store.port import Store


async def doctor(view: View) -> Page:
    """Return what all checks find."""
    return Page(
        template="doctor.html",
        title="Doctor",
        place="/doctor",
        values={"findings": await _examine(view)},
    )


async def _examine(view: View) -> Sequence[Finding]:
    database = view.site.database
    if database is None:  # a store was given: what is below it is not known
        checks = (check_apps, check_workers, check_unserved, check_pauses)
        more = (check_sweeper, check_limits, check_schedules)
        return [await check(view.store) for check in (*checks, *more)]

    async def store() -> Store:
        return view.store

    async with connected(database.url) as connection:
        return await examine(connection, store, view.site.schema)
