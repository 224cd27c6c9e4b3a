"""The part of the port for retention: delete ended runs whose time is over."""

from __future__ import annotations

from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import BegunDeletions, SweeperState, SweepShare, Swept


class RetentionStore(Protocol):
    """Deletes ended runs, a batch at a time, and knows who does so."""

    @readable
    async def begin_deletions(
        self,
        holder: str,
        *,
        interval_seconds: float,
        lease_seconds: float = 60.0,
        archive: str | None = None,
    ) -> BegunDeletions:
        """Begin a pass, unless another process sweeps or did so less than half an interval ago.

        'archive' means that runs are archived before they are deleted, elsewhere than `archive`.
        """
        ...

    @readable
    async def end_deletions(
        self, holder: str, *, deleted: int, has_more: bool, error: str | None = None
    ) -> None:
        """Record what came of a pass."""
        ...

    @readable
    async def sweep_runs(
        self, *, limit: int = 1000, rows: int = 20_000, after: int | None = None
    ) -> Swept:
        """Delete ended runs whose retention is over: at most `limit`, with about `rows` rows.

        A run is kept while a child of it has not ended, and while the run that continues or
        retries it is there. Raises InvalidInput if runs are archived before they are deleted.
        """
        ...

    @readable
    async def preview_sweep(self, *, limit: int = 100_000) -> list[SweepShare]:
        """Return what would be done with the first `limit` runs that are due, by workflow."""
        ...

    @readable
    async def get_sweeper(self, *, limit: int = 10_000) -> SweeperState:
        """Return who sweeps, and how many runs are due; counts at most `limit` of them."""
        ...
