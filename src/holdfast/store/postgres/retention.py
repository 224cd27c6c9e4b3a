"""Retention: delete ended runs whose time is over."""

from __future__ import annotations

from holdfast.store.postgres.calls import Call, all_rows, only_row, only_value
from holdfast.store.postgres.database import Part
from holdfast.types import BegunDeletions, SweeperState, SweepShare, Swept

_PATIENCE = 3  # a batch of large runs takes longer than other calls


class PostgresRetention(Part):
    begin_deletions: Call[BegunDeletions] = only_value()
    end_deletions = all_rows(lambda _: None)
    get_sweeper = only_row(lambda found: SweeperState(**dict(found)))

    async def sweep_runs(
        self, *, limit: int = 1000, rows: int = 20_000, after: int | None = None
    ) -> Swept:
        [row] = await self._database.rows("sweep_runs", limit, rows, after, patience=_PATIENCE)
        return Swept(**dict(row))

    async def preview_sweep(self, *, limit: int = 100_000) -> list[SweepShare]:
        found = await self._database.rows("preview_sweep", limit, patience=_PATIENCE)
        return [SweepShare(**dict(row)) for row in found]
