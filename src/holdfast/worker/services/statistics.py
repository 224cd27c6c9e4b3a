"""Statistics by minute: merged and deleted as they get older, and told to who shows metrics."""

from __future__ import annotations

from typing import Final

from holdfast.worker.observing import CountedEnds
from holdfast.worker.services.service import Service, ServiceContext

_FIRST_SECONDS: Final = 4.0  # workers that start together do not look together
_BATCH: Final = 1_000


class OldStatistics(Service):
    """Merge what several workers wrote, then minutes to hours; delete what is very old."""

    _seconds = 60.0
    _first_seconds = _FIRST_SECONDS

    async def run_once(self) -> None:
        """Merge a batch; continue soon if there is more."""
        if await self._store.merge_stats(limit=_BATCH) >= _BATCH:
            self.wake()


class Samples(Service):
    """Look each minute how much waits and how much is worked on; the first worker to look writes.

    Samples get older as the statistics do.
    """

    _seconds = 48.0  # with the spread of a service at most 57.6: each minute has a sample
    _first_seconds = _FIRST_SECONDS

    async def run_once(self) -> None:
        """Write this minute's sample if there is none; merge a batch, continue if it is full."""
        await self._store.sample_load()
        if await self._store.merge_samples(limit=_BATCH) >= _BATCH:
            self.wake()


class OutsideEnds(Service):
    """Tell of runs that were ended without a worker's commit: from outside, or runs of flows."""

    duty = "ends"
    _seconds = 5.0  # monitors ask at longer intervals

    def __init__(self, context: ServiceContext, app: str, tell: CountedEnds) -> None:
        """`tell` is called with each count that this worker is given."""
        super().__init__(context)
        self._app, self._tell = app, tell

    async def run_once(self) -> None:
        """Take what was counted, and tell of it; continue soon if there is more."""
        taken = await self._store.take_counts(self._app, limit=_BATCH)
        for counts in taken:
            self._tell(counts)
        if len(taken) >= _BATCH:
            self.wake()
