"""Run the checks of `holdfast doctor` from a server."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.database.connection import connected
from holdfast.insight.doctor import check_apps, check_pauses, check_unserved, check_workers
from holdfast.insight.examining import examine
from holdfast.insight.findings import Finding
from holdfast.insight.limits import check_limits
from holdfast.insight.retention import check_sweeper
from holdfast.insight.schedules import check_schedules
from holdfast.insight.shards import examine_shards
from holdfast.server.site import Site
from holdfast.store.port import Store


async def examine_site(site: Site) -> Sequence[Finding]:
    """Return what all checks find in the database of a server."""
    if site.database is None:  # a store was given: what is below it is not known
        checks = (check_apps, check_workers, check_unserved, check_pauses)
        more = (check_sweeper, check_limits, check_schedules)
        return [await check(site.store) for check in (*checks, *more)]

    if site.database.shards:
        return await examine_shards(site.database, site.schema)

    async def store() -> Store:
        return site.store

    async with connected(site.database.url) as connection:
        return await examine(connection, store, site.schema)
