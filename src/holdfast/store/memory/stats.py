"""Statistics by minute."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from holdfast.store.memory.database import Part
from holdfast.store.memory.tables import Tables
from holdfast.types import EndStatus, Gauges, MinuteCounts
from holdfast.types.stats import BOUNDS, BUCKETS, COUNTS, ENDED, MILLIS

_MINUTE: Final = 60_000_000
_HOUR: Final = 60 * _MINUTE
_WRITER: Final = "sql/0"  # of what no worker wrote
_Key: TypeAlias = tuple[int, int, str, str]


class MemoryStats(Part):
    """Reads and merges statistics."""

    async def read_stats(
        self, *, since: int, names: Sequence[str] | None = None, limit: int = 20_000
    ) -> list[MinuteCounts]:
        """Return counts; see `StatsStore.read_stats`."""
        async with self._transaction() as (tables, _):
            found = sorted(tables.stats, reverse=True)
            return [
                MinuteCounts(
                    minute, name, tuple(tables.stats[minute, seconds, name, writer]), seconds
                )
                for minute, seconds, name, writer in found
                if minute >= since and (names is None or name in names)
            ][:limit]

    async def merge_stats(self, *, limit: int = 1_000) -> int:
        """Merge and delete rows; see `StatsStore.merge_stats`."""
        async with self._transaction() as (tables, now):
            days = _floor(now - 48 * _HOUR, _HOUR)
            old = [key for key in sorted(tables.stats) if key[0] < now - 90 * 24 * _HOUR][:limit]
            for key in old:
                del tables.stats[key]
            by_writer = [
                key for key in sorted(tables.stats) if key[0] < now - 6 * _MINUTE and key[3]
            ]
            merged = _merge(tables, by_writer[:limit], 60)
            by_minute = [key for key in sorted(tables.stats) if key[0] < days and key[1] == 60]
            return len(old) + merged + _merge(tables, by_minute[:limit], 3600)

    async def take_counts(self, app: str, *, limit: int = 1_000) -> list[MinuteCounts]:
        """Take counts of ends that no worker's commit has made; see `StatsStore.take_counts`."""
        async with self._transaction() as (tables, _):
            keys = [
                key
                for key in sorted(tables.stats)
                if key[3] == _WRITER and key[2].startswith(f"{app}/")
            ][:limit]
            taken = [MinuteCounts(key[0], key[2], tuple(tables.stats[key])) for key in keys]
            _merge(tables, keys, 60)
            return taken

    async def read_gauges(self, *, limit: int = 10_001) -> Gauges:
        """Return how things stand; see `StatsStore.read_gauges`."""
        async with self._transaction() as (tables, now):
            tasks = [task for task in tables.tasks.values() if task.handler]
            names = {row.new.name for row in tables.runs.values()}
            running = Counter(
                row.new.name for row in tables.runs.values() if row.status == "running"
            )
            due: dict[str, list[int]] = {task.queue: [] for task in tasks}
            for task in tasks:
                at = task.visible_at
                if task.worker is None and at <= now:
                    due[task.queue].append(at)
            kinds = Counter(task.kind for task in tables.tasks.values())
            stuck = sum(task.stuck is not None for task in tables.tasks.values())
            return Gauges(
                in_flight={name: min(running[name], limit) for name in names},
                due={queue: min(len(ats), limit) for queue, ats in due.items()},
                oldest_due_seconds={
                    queue: (now - min(ats, default=now)) / 1e6 for queue, ats in due.items()
                },
                approvals_open=min(kinds["approval"], limit),
                runs_stuck=min(stuck, limit),
            )


def record_stats(tables: Tables, writer: str, stats: Iterable[MinuteCounts]) -> None:
    """Add what a writer counted."""
    for each in stats:
        _add(tables, (_floor(each.minute, _MINUTE), 60, each.name, writer), each.counts)


def count_ends(tables: Tables, now: int, run_ids: Iterable[UUID], status: EndStatus) -> None:
    """Count runs that ended without a worker's commit."""
    for run_id in run_ids:
        row, counts = tables.runs[run_id], [0] * COUNTS
        counts[ENDED[status]] = 1
        if row.started_at is not None:
            took = max(now - row.started_at, 0) / 1e6
            counts[MILLIS] = round(took * 1000)
            counts[BUCKETS + bisect_right(BOUNDS, took)] = 1
        record_stats(tables, _WRITER, [MinuteCounts(now, row.new.name, tuple(counts))])


def _merge(tables: Tables, keys: Sequence[_Key], seconds: int) -> int:
    for key in keys:
        minute, _, name, _ = key
        counts = tables.stats.pop(key)
        _add(tables, (_floor(minute, seconds * 1_000_000), seconds, name, ""), counts)
    return len(keys)


def _add(tables: Tables, key: _Key, counts: Sequence[int]) -> None:
    row = tables.stats.setdefault(key, [0] * COUNTS)
    for place, count in enumerate(counts):
        row[place] += count


def _floor(moment: int, length: int) -> int:
    return moment - moment % length


def has_outside_ends(tables: Tables) -> bool:
    """Return True if there are counts of ends that no worker's commit has made."""
    return any(key[3] == _WRITER for key in tables.stats)
