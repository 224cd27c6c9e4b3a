"""The part of the port for statistics by minute. Workers write them with their heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import Gauges, LoadSample, MinuteCounts
from holdfast.types.work import SILENT_SECONDS


class StatsStore(Protocol):
    """Reads statistics, merges them as they get older, and deletes them."""

    @readable
    async def read_stats(
        self,
        *,
        since: int,
        part_seconds: int = 60,
        names: Sequence[str] | None = None,
        limit: int = 100_000,
    ) -> list[MinuteCounts]:
        """Return the counts from a moment on by parts of so many seconds, the newest first.

        The newest `limit` rows of minutes and hours are added up.
        """
        ...

    @readable
    async def merge_stats(self, *, limit: int = 1_000) -> int:
        """Merge writers after some minutes, minutes to hours after 48 h; delete after 90 days.

        Returns how many rows were merged or deleted, of each at most `limit`.
        """
        ...

    @readable
    async def take_counts(self, app: str, *, limit: int = 1_000) -> list[MinuteCounts]:
        """Take what was counted of an app's runs that ended without a worker's commit.

        Each count is given to one caller, and stays among the statistics. What was counted some
        minutes ago is not given to anybody.
        """
        ...

    @readable
    async def sample_load(
        self, *, silent_seconds: float = SILENT_SECONDS, limit: int = 10_000
    ) -> bool:
        """Write how much waits and is worked on in this minute; False if that is written.

        Of each pair of a queue and a handler `limit` tasks are counted; of 1,000 pairs at most,
        the 100 with most tasks are kept beside the sums.
        """
        ...

    @readable
    async def read_samples(
        self, *, since: int, part_seconds: int, name: str | None = None
    ) -> list[LoadSample]:
        """Return the samples from a moment on, by parts of so many seconds and by queue.

        `name`: of one workflow, flow or activity with its app, beside the row of all queues.
        """
        ...

    @readable
    async def merge_samples(self, *, limit: int = 1_000) -> int:
        """Merge minutes to hours after 48 h; delete after 90 days. As `merge_stats`."""
        ...

    @readable
    async def read_gauges(self, *, limit: int = 10_001) -> Gauges:
        """Return how things stand now; each count ends at `limit`."""
        ...
