"""Statistics by minute."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.postgres.database import Part
from holdfast.store.postgres.rows import reader
from holdfast.types import Gauges, LoadSample, MinuteCounts
from holdfast.types.work import SILENT_SECONDS

_read_sample = reader(LoadSample)


class PostgresStats(Part):
    async def read_stats(
        self,
        *,
        since: int,
        part_seconds: int = 60,
        names: Sequence[str] | None = None,
        limit: int = 100_000,
    ) -> list[MinuteCounts]:
        given = None if names is None else list(names)
        return [
            MinuteCounts(row["minute"], row["name"], tuple(row["counts"]), row["merged"])
            for row in await self._database.rows("read_stats", since, given, limit, part_seconds)
        ]

    async def merge_stats(self, *, limit: int = 1_000) -> int:
        merged: int = await self._database.value("merge_stats", limit)
        return merged

    async def take_counts(self, app: str, *, limit: int = 1_000) -> list[MinuteCounts]:
        return [
            MinuteCounts(row["minute"], row["name"], tuple(row["counts"]))
            for row in await self._database.rows("take_counts", app, limit)
        ]

    async def sample_load(
        self, *, silent_seconds: float = SILENT_SECONDS, limit: int = 10_000
    ) -> bool:
        written: bool = await self._database.value("sample_load", silent_seconds, limit)
        return written

    async def read_samples(
        self, *, since: int, part_seconds: int, name: str | None = None
    ) -> list[LoadSample]:
        found = await self._database.rows("read_samples", since, part_seconds, name)
        return [_read_sample(row) for row in found]

    async def merge_samples(self, *, limit: int = 1_000) -> int:
        merged: int = await self._database.value("merge_samples", limit)
        return merged

    async def read_gauges(self, *, limit: int = 10_001) -> Gauges:
        found: dict[str, dict[str, int]] = {"in_flight": {}, "due": {}, "oldest_due": {}}
        for row in await self._database.rows("read_gauges", limit):
            found.setdefault(row["gauge"], {})[row["name"]] = row["number"]
        return Gauges(
            in_flight=found["in_flight"],
            due=found["due"],
            oldest_due_seconds={name: each / 1e6 for name, each in found["oldest_due"].items()},
            approvals_open=found["approvals_open"][""],
            runs_stuck=found["runs_stuck"][""],
        )


def stats_arguments(
    stats: Sequence[MinuteCounts],
) -> tuple[list[int] | None, list[str] | None, list[str] | None]:
    """Return what the heartbeat's function is given: moments, names and counts as texts."""
    if not stats:
        return None, None, None
    texts = [f"{{{','.join(map(str, each.counts))}}}" for each in stats]
    return [each.minute for each in stats], [each.name for each in stats], texts
