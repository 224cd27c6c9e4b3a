"""Pages of a run's log, for the API and the dashboard: no answer costs a whole log."""

from __future__ import annotations

from uuid import UUID

from holdfast.server.site import Site
from holdfast.types import ClippedEvent


async def read_log_page(
    site: Site, run_id: UUID, since: int, limit: int, clip: int
) -> list[ClippedEvent]:
    """Return at most `limit` entries of a log from an index on, details cut. Raises RunNotFound.

    The log of an archived run is in one file, which is read whole.
    """
    found = await site.store.read_log(run_id, since, limit=limit, clip=clip)
    if not found and (await site.reader.runs.get(run_id)).record.archive is not None:
        log = (await site.reader.runs.log(run_id, since))[:limit]
        return [ClippedEvent.of(each.idx, each.event, clip) for each in log]
    return found
