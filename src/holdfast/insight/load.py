"""How much waited for workers lately, and how much of the workers was in use.

It comes from the samples that a worker writes once a minute.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from holdfast.insight.stats import cut
from holdfast.store.port import Store
from holdfast.types import LoadSample
from holdfast.values.moments import to_datetime

COUNTED: Final = 10_000  # tasks of a queue and a handler: a longer queue is not counted to its end

_SECOND: Final = 1_000_000


class LoadPoint(msgspec.Struct, frozen=True):
    """One part of the time; all but `at` are null if no worker looked in it.

    `due` is the largest number of tasks that waited for a worker. `busy` are the tasks that workers
    had, `places` those that live workers may have at once: the mean of the part.
    """

    at: datetime
    due: int | None
    busy: float | None
    places: float | None


class QueueBacklog(msgspec.Struct, frozen=True):
    """How many tasks of a queue waited for a worker in each part, at most; null if unknown."""

    queue: str
    most: int
    due: list[int | None]


class Load(msgspec.Struct, frozen=True):
    """Backlog and load from `since` on, in parts of the time, oldest first.

    `queues` has the one with the longest backlog first. Of each queue 10,000 tasks are counted for
    each workflow, flow or activity.
    """

    since: datetime
    seconds: float
    points: list[LoadPoint]
    queues: list[QueueBacklog]


async def read_load(
    store: Store, *, since_seconds: float = 3600.0, name: str | None = None
) -> Load:
    """Return backlog and load of the last so many seconds.

    `name` is a workflow, flow or activity with its app: its own backlog, and the places that it
    has of all that there are.
    """
    now = await store.now()
    first, part, parts = cut(now, since_seconds)
    rows = await store.read_samples(since=first, part_seconds=part // _SECOND, name=name)
    found = {(row.queue, min(row.part, parts - 1)): row for row in rows}
    queues = sorted({row.queue for row in rows if row.queue})
    points: list[LoadPoint] = []
    for place in range(parts):
        everything = found.get(("", place))
        own = [found[queue, place] for queue in queues if (queue, place) in found]
        at = to_datetime(first + place * part)
        points.append(_point(at, everything, None if name is None else own))
    known = [point.due is not None for point in points]
    backlogs = [
        _backlog(queue, [found.get((queue, place)) for place in range(parts)], known)
        for queue in queues
    ]
    backlogs.sort(key=lambda each: (-each.most, each.queue))
    return Load(to_datetime(first), (now - first) / _SECOND, points, backlogs)


def _point(at: datetime, of_all: LoadSample | None, own: list[LoadSample] | None) -> LoadPoint:
    """Return a point: of all queues, or of `own` rows, those of one workflow."""
    if of_all is None:
        return LoadPoint(at, None, None, None)
    rows = [of_all] if own is None else own
    return LoadPoint(
        at,
        sum(row.due for row in rows),
        round(sum(row.busy for row in rows) / of_all.looks, 2),
        round(of_all.places / of_all.looks, 2),
    )


def _backlog(queue: str, rows: list[LoadSample | None], known: list[bool]) -> QueueBacklog:
    due = [
        row.due if row is not None else 0 if is_known else None
        for row, is_known in zip(rows, known, strict=True)
    ]
    return QueueBacklog(queue, max((each for each in due if each is not None), default=0), due)
