"""Statistics by minute."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from operator import add
from typing import Final, TypeAlias
from uuid import UUID

from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.tables import Tables
from holdfast.types import EndStatus, Gauges, LoadSample, MinuteCounts
from holdfast.types.stats import BOUNDS, BUCKETS, COUNTS, ENDED, MILLIS
from holdfast.types.work import SILENT_SECONDS

_MINUTE: Final = 60_000_000
_HOUR: Final = 60 * _MINUTE
_WRITER: Final = "sql/0"  # of what no worker wrote
_Key: TypeAlias = tuple[int, int, str, str]


class MemoryStats(Part):
    async def read_stats(
        self,
        *,
        since: int,
        part_seconds: int = 60,
        names: Sequence[str] | None = None,
        limit: int = 100_000,
    ) -> list[MinuteCounts]:
        part = part_seconds * 1_000_000
        async with self._transaction() as (tables, _):
            keys = [
                key
                for key in sorted(tables.stats, reverse=True)
                if key[0] >= since and (names is None or key[2] in names)
            ]
            parts: defaultdict[tuple[int, str], list[tuple[int, ...]]] = defaultdict(list)
            for key in keys[:limit]:
                parts[since + _floor(key[0] - since, part), key[2]].append(tuple(tables.stats[key]))
        return [
            MinuteCounts(at, name, tuple(map(sum, zip(*rows, strict=True))), len(rows))
            for (at, name), rows in sorted(parts.items(), key=lambda each: -each[0][0])
        ]

    async def merge_stats(self, *, limit: int = 1_000) -> int:
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
        async with self._transaction() as (tables, _):
            keys = [
                key
                for key in sorted(tables.stats)
                if key[3] == _WRITER and key[2].startswith(f"{app}/")
            ][:limit]
            taken = [MinuteCounts(key[0], key[2], tuple(tables.stats[key])) for key in keys]
            _merge(tables, keys, 60)
            return taken

    async def sample_load(
        self, *, silent_seconds: float = SILENT_SECONDS, limit: int = 10_000
    ) -> bool:
        async with self._transaction() as (tables, now):
            minute = _floor(now, _MINUTE)
            if (minute, 60, "", "") in tables.samples:
                return False
            pairs: Counter[tuple[str, str, bool]] = Counter()
            for task in tables.tasks.values():
                if task.handler and (task.worker is not None or task.visible_at <= now):
                    pairs[task.queue, task.name, task.worker is not None] += 1
            silent = to_micros(silent_seconds)
            alive = [each for each in tables.workers.values() if now - each.heard_at <= silent]
            rows = {("", ""): [1, 0, 0, sum(each.concurrency for each in alive)]}
            for (queue, name, is_busy), count in pairs.items():
                row = rows.setdefault((queue, name), [1, 0, 0, 0])
                for each in (row, rows["", ""]):
                    each[2 if is_busy else 1] += min(count, limit)
            for (queue, name), row in rows.items():
                tables.samples[minute, 60, queue, name] = row
            return True

    async def read_samples(
        self, *, since: int, part_seconds: int, name: str | None = None
    ) -> list[LoadSample]:
        async with self._transaction() as (tables, _):
            minutes: dict[tuple[int, int, str], list[int]] = {}
            for (minute, seconds, queue, of), row in tables.samples.items():
                if minute >= since and (name is None or of in ("", name)):
                    sums = minutes.setdefault((minute, seconds, queue), [row[0], 0, 0, 0])
                    sums[0] = max(sums[0], row[0])
                    sums[1:] = map(add, sums[1:], row[1:])
            parts: dict[tuple[int, str], list[int]] = {}
            for (minute, _, queue), row in minutes.items():
                part = (minute - since) // (part_seconds * 1_000_000)
                _add_sample(parts.setdefault((part, queue), [0] * 4), row)
            return [LoadSample(part, queue, *parts[part, queue]) for part, queue in sorted(parts)]

    async def merge_samples(self, *, limit: int = 1_000) -> int:
        async with self._transaction() as (tables, now):
            days, samples = _floor(now - 48 * _HOUR, _HOUR), tables.samples
            old = [key for key in sorted(samples) if key[0] < now - 90 * 24 * _HOUR][:limit]
            for key in old:
                del samples[key]
            taken = [key for key in sorted(samples) if key[0] < days and key[1] == 60][:limit]
            for key in taken:
                hour = (_floor(key[0], _HOUR), 3600, *key[2:])
                _add_sample(samples.setdefault(hour, [0] * 4), samples.pop(key))
            return len(old) + len(taken)

    async def read_gauges(self, *, limit: int = 10_001) -> Gauges:
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


def _add_sample(row: list[int], more: Sequence[int]) -> None:
    """Add a sample: the largest number of tasks that waited, the sums of the others."""
    row[:] = [row[0] + more[0], max(row[1], more[1]), row[2] + more[2], row[3] + more[3]]


def _floor(moment: int, length: int) -> int:
    return moment - moment % length


def has_outside_ends(tables: Tables) -> bool:
    """Return True if there are counts of ends that no worker's commit has made."""
    return any(key[3] == _WRITER for key in tables.stats)
