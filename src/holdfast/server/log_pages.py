"""Pages of a run's log, for the API and the dashboard: no answer costs a whole log."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from holdfast.insight.shapes import LARGEST_SHOWN
from holdfast.server.site import Site
from holdfast.types import ClippedEvent

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of details after which a page ends."""

_PART_EVENTS: Final = 200
_PART_BYTES: Final = 1024 * 1024


class LogPage(NamedTuple):
    """Entries of a log, and the index that continues it: None at the log's present end."""

    entries: list[ClippedEvent]
    next: int | None


async def read_log_page(site: Site, run_id: UUID, since: int, limit: int, clip: int) -> LogPage:
    """Return at most `limit` entries of a log from an index on, details cut. Raises RunNotFound.

    A page of large details ends sooner, but has one entry at least if there is one. The log of an
    archived run is in one file, which is read whole.
    """
    [found] = await site.store.read_tails(
        [(run_id, since)], limit=limit + 1, clip=clip, most_bytes=PAGE_BYTES
    )
    found = found or await _archived(site, run_id, since, limit + 1, clip)
    entries = found[:limit]
    if not entries:
        return LogPage([], None)
    next_idx = entries[-1].idx + 1
    more = len(found) > limit or (
        sum(each.size for each in found) >= PAGE_BYTES  # perhaps it ended because of that
        and bool(await site.store.read_log(run_id, next_idx, limit=1, clip=0))
    )
    return LogPage(entries, next_idx if more else None)


async def read_log_part(site: Site, run_id: UUID, since: int) -> list[ClippedEvent]:
    """Return the next entries of a log from an index on, about a megabyte of them at most.

    There are none at its present end. Raises RunNotFound.
    """
    [found] = await site.store.read_tails(
        [(run_id, since)], limit=_PART_EVENTS, clip=LARGEST_SHOWN, most_bytes=_PART_BYTES
    )
    return found or await _archived(site, run_id, since, _PART_EVENTS, LARGEST_SHOWN)


async def _archived(
    site: Site, run_id: UUID, since: int, limit: int, clip: int
) -> list[ClippedEvent]:
    """Return entries of an archived run, none of one that is in the database."""
    if (await site.reader.runs.get(run_id)).record.archive is None:
        return []
    log = (await site.reader.runs.log(run_id, since))[:limit]
    return [ClippedEvent.of(each.idx, each.event, clip) for each in log]
