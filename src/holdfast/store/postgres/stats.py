"""Statistics by minute."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.postgres.calls import Call, each_row, only_value
from holdfast.store.postgres.database import Part
from holdfast.store.postgres.rows import reader
from holdfast.types import Gauges, LoadSample, MinuteCounts

_read_sample = reader(LoadSample)


class PostgresStats(Part):
    merge_stats: Call[int] = only_value()
    take_counts = each_row(
        lambda row: MinuteCounts(row["minute"], row["name"], tuple(row["counts"]))
    )
    sample_load: Call[bool] = only_value()
    read_samples = each_row(reader(LoadSample))
    merge_samples: Call[int] = only_value()

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
