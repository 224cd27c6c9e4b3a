"""What became of the runs of workflows lately: how many, how they ended, how long they took.

It comes from the statistics by minute. They are approximate: what a killed worker did last is
missing, and lengths of time are known by the bucket that they fell into.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import add
from typing import Final, TypeAlias

import msgspec

from holdfast.insight.findings import Finding
from holdfast.insight.wording import length, several
from holdfast.store.port import Store
from holdfast.types.stats import BEGUN, BUCKETS, COUNTS, ENDED, MILLIS, RETRIES, percentile
from holdfast.values.moments import to_datetime

POINTS: Final = 60  # of a series
DAYS_KEPT: Final = 90

_SECOND: Final = 1_000_000
_MOST_ROWS: Final = 100_000  # of minutes and hours: 30 workflows that run all the time, two days
_FAILED: Final = ("failed", "timed_out")
_SURGE_SECONDS: Final = 600.0
_SURGE_LEAST: Final = 10  # so many failures at least
_SURGE_SHARE: Final = 0.2
_NAMED: Final = 5

_Series: TypeAlias = list[list[int]]  # what was counted in each part of the time


class StatsPoint(msgspec.Struct, frozen=True):
    """One part of the time: how many runs began and ended in it, and how many of these failed.

    Those that timed out have failed, too. `p50` and `p95` are as in WorkflowStats.
    """

    at: datetime
    begun: int
    ended: int
    failed: int
    p50: float | None
    p95: float | None


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
    """Statistics from `since` on, by workflow: approximate. `total`, without a name, is of all."""

    since: datetime
    seconds: float
    workflows: list[WorkflowStats]
    total: WorkflowStats


async def read_workflow_stats(
    store: Store, *, since_seconds: float = 3600.0, names: Sequence[str] | None = None
) -> Stats:
    """Return the statistics of the last so many seconds, by name of workflow.

    The time is cut into parts of whole minutes or whole hours, at most `POINTS`.
    """
    now = await store.now()
    first, part, parts = cut(now, since_seconds)
    rows = await store.read_stats(
        since=first, part_seconds=part // _SECOND, names=names, limit=_MOST_ROWS
    )
    if sum(row.merged for row in rows) >= _MOST_ROWS:  # the oldest are missing
        first = rows[-1].minute - rows[-1].minute % part + part
        rows = [row for row in rows if row.minute >= first]
        parts = (now - first) // part + 1
    by_name: defaultdict[str, _Series] = defaultdict(partial(_empty, parts))
    for row in rows:
        series, place = by_name[row.name], min((row.minute - first) // part, parts - 1)
        series[place] = list(map(add, series[place], row.counts))
    everything = [_sum(points) for points in zip(_empty(parts), *by_name.values(), strict=True)]
    moments = [to_datetime(first + place * part) for place in range(parts)]
    minutes = max((now - first) / (60 * _SECOND), 1)
    found = [_of(name, of, moments, minutes) for name, of in sorted(by_name.items())]
    total = _of("", everything, moments, minutes)
    return Stats(moments[0], (now - first) / _SECOND, found, total)


def cut(now: int, since_seconds: float) -> tuple[int, int, int]:
    """Cut the time until now into parts: return when it begins, and their length and number."""
    part = max(-(-round(since_seconds) // (60 * POINTS)), 1) * 60
    if part > 3600:  # old minutes are kept as hours
        part += -part % 3600
    parts = min(max(round(since_seconds / part), 1), POINTS)
    part *= _SECOND
    return now - now % part - (parts - 1) * part, part, parts


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


def _of(name: str, series: _Series, moments: Sequence[datetime], minutes: float) -> WorkflowStats:
    total = _sum(series)
    ended, buckets = _ended(total), total[BUCKETS:]
    count, timed = sum(ended.values()), sum(buckets)
    return WorkflowStats(
        name=name,
        begun=total[BEGUN],
        ended=ended,
        failed_percent=round(100 * _failed(ended) / count, 1) if count else 0.0,
        per_minute=round(count / minutes, 2),
        retries=total[RETRIES],
        mean=round(total[MILLIS] / 1000 / timed, 3) if timed else None,
        p50=percentile(buckets, 0.5),
        p95=percentile(buckets, 0.95),
        p99=percentile(buckets, 0.99),
        series=[_point(at, counts) for at, counts in zip(moments, series, strict=True)],
    )


def _point(at: datetime, counts: Sequence[int]) -> StatsPoint:
    ended, buckets = _ended(counts), counts[BUCKETS:]
    return StatsPoint(
        at,
        counts[BEGUN],
        sum(ended.values()),
        _failed(ended),
        percentile(buckets, 0.5),
        percentile(buckets, 0.95),
    )


def _empty(parts: int) -> _Series:
    return [[0] * COUNTS for _ in range(parts)]


def _sum(points: Iterable[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip(*points, strict=True)]


def _ended(counts: Sequence[int]) -> dict[str, int]:
    return {status: counts[place] for status, place in ENDED.items() if counts[place]}


def _failed(ended: Mapping[str, int]) -> int:
    return sum(ended.get(status, 0) for status in _FAILED)
