"""What became of the runs of workflows lately: how many, how they ended, how long they took.

It comes from the statistics by minute. They are approximate: what a killed worker did last is
missing, and lengths of time are known by the bucket that they fell into.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from holdfast.insight.findings import Finding
from holdfast.insight.wording import length, several
from holdfast.moments import to_datetime
from holdfast.store.port import Store
from holdfast.types import MinuteCounts
from holdfast.types.stats import BEGUN, BOUNDS, BUCKETS, COUNTS, ENDED, MILLIS, RETRIES

POINTS: Final = 60  # of a series
DAYS_KEPT: Final = 90

_SECOND: Final = 1_000_000
_MOST_ROWS: Final = 20_000
_FAILED: Final = ("failed", "timed_out")
_SURGE_SECONDS: Final = 600.0
_SURGE_LEAST: Final = 10  # so many failures at least
_SURGE_SHARE: Final = 0.2
_NAMED: Final = 5


class StatsPoint(msgspec.Struct, frozen=True):
    """How many runs ended in one part of the time, and how many of these failed or timed out."""

    at: datetime
    ended: int
    failed: int


class WorkflowStats(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the runs of a workflow in a time.

    `begun` counts runs that a worker claimed first; runs of flows are not claimed, and it is 0.
    `retries` counts attempts of steps after the first. `p50` and the others are seconds from the
    first claim to the end, null if no run ended. `series` has the parts of the time, oldest first.
    """

    name: str
    begun: int
    ended: dict[str, int]
    failed_percent: float
    per_minute: float
    retries: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    series: list[StatsPoint]


class Stats(msgspec.Struct, frozen=True):
    """Statistics from `since` on, by workflow: approximate."""

    since: datetime
    seconds: float
    workflows: list[WorkflowStats]


async def read_workflow_stats(
    store: Store, *, since_seconds: float = 3600.0, names: Sequence[str] | None = None
) -> Stats:
    """Return the statistics of the last so many seconds, by name of workflow.

    The time is cut into parts of whole minutes, at most `POINTS`.
    """
    now = await store.now()
    part = max(-(-round(since_seconds) // (60 * POINTS)), 1) * 60 * _SECOND
    parts = min(max(round(since_seconds * _SECOND / part), 1), POINTS)
    first = now - now % part - (parts - 1) * part
    rows = await store.read_stats(since=first, names=names, limit=_MOST_ROWS)
    if len(rows) == _MOST_ROWS:  # the oldest are missing
        first = rows[-1].minute - rows[-1].minute % part + part
        rows = [row for row in rows if row.minute >= first]
        parts = (now - first) // part + 1
    by_name: defaultdict[str, list[MinuteCounts]] = defaultdict(list)
    for row in rows:
        by_name[row.name].append(row)
    minutes = (now - first) / (60 * _SECOND)
    found = [_of(name, of, first, part, parts, minutes) for name, of in sorted(by_name.items())]
    return Stats(to_datetime(first), (now - first) / _SECOND, found)


async def check_failures(store: Store) -> Finding:
    """Name the workflows of which many runs failed in the last minutes."""
    stats = await read_workflow_stats(store, since_seconds=_SURGE_SECONDS)
    problems: list[str] = []
    for each in stats.workflows:
        failed, ended = _failed(each.ended), sum(each.ended.values())
        if failed >= _SURGE_LEAST and failed >= _SURGE_SHARE * ended:
            problems.append(f"{each.name}: {failed:,} of {several(ended, 'run')} that ended")
    span = length(round(_SURGE_SECONDS * _SECOND))
    if not problems:
        return Finding("failures", "ok", f"no workflow fails often in the last {span}")
    more = len(problems) - _NAMED
    return Finding(
        "failures",
        "warn",
        f"failed in the last {span}, about: "
        + "; ".join(problems[:_NAMED])
        + (f"; and {several(more, 'other workflow')}" if more > 0 else ""),
        "look at the errors of the newest failed runs; retry the runs when the cause is gone",
    )


def percentile(buckets: Sequence[int], part: float) -> float | None:
    """Return about how long runs took, of which this part took less; None without any.

    Within a bucket it is a geometric mean of the bounds, weighted by where the part falls.
    """
    wanted = part * sum(buckets)
    if not wanted:
        return None
    before = 0
    for place, count in enumerate(buckets):
        if count and before + count >= wanted:
            low = BOUNDS[place - 1] if place else BOUNDS[0] / 10
            high = BOUNDS[min(place, len(BOUNDS) - 1)]
            return round(low * math.pow(high / low, (wanted - before) / count), 4)
        before += count
    return BOUNDS[-1]


def _of(
    name: str, rows: Sequence[MinuteCounts], first: int, part: int, parts: int, minutes: float
) -> WorkflowStats:
    total, series = [0] * COUNTS, [[0, 0] for _ in range(parts)]
    for row in rows:
        for place, count in enumerate(row.counts):
            total[place] += count
        point = series[min((row.minute - first) // part, parts - 1)]
        ended = {status: row.counts[place] for status, place in ENDED.items()}
        point[0] += sum(ended.values())
        point[1] += _failed(ended)
    ended = {status: total[place] for status, place in ENDED.items() if total[place]}
    count, buckets = sum(ended.values()), total[BUCKETS:]
    timed = sum(buckets)
    return WorkflowStats(
        name=name,
        begun=total[BEGUN],
        ended=ended,
        failed_percent=round(100 * _failed(ended) / count, 1) if count else 0.0,
        per_minute=round(count / max(minutes, 1), 2),
        retries=total[RETRIES],
        mean=round(total[MILLIS] / 1000 / timed, 3) if timed else None,
        p50=percentile(buckets, 0.5),
        p95=percentile(buckets, 0.95),
        p99=percentile(buckets, 0.99),
        series=[
            StatsPoint(to_datetime(first + place * part), *point)
            for place, point in enumerate(series)
        ],
    )


def _failed(ended: Mapping[str, int]) -> int:
    return sum(ended.get(status, 0) for status in _FAILED)
