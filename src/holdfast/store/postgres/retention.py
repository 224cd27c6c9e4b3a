"""Retention: delete ended runs whose time is over."""

from __future__ import annotations

from holdfast.store.postgres.database import Part
from holdfast.types import BegunDeletions, SweeperState, SweepShare, Swept

_PATIENCE = 3  # a batch of large runs takes longer than other calls


class PostgresRetention(Part):
    async def begin_deletions(
        self,
        holder: str,
        *,
        interval_seconds: float,
        lease_seconds: float = 60.0,
        archive: str | None = None,
    ) -> BegunDeletions:
        begun: BegunDeletions = await self._database.value(
            "begin_deletions", holder, interval_seconds, lease_seconds, archive
        )
        return begun

    async def end_deletions(
        self, holder: str, *, deleted: int, has_more: bool, error: str | None = None
    ) -> None:
        await self._database.rows("end_deletions", holder, deleted, has_more, error)

    async def sweep_runs(
        self, *, limit: int = 1000, rows: int = 20_000, after: int | None = None
    ) -> Swept:
        [row] = await self._database.rows("sweep_runs", limit, rows, after, patience=_PATIENCE)
        return Swept(**dict(row))

    async def preview_sweep(self, *, limit: int = 100_000) -> list[SweepShare]:
        found = await self._database.rows("preview_sweep", limit, patience=_PATIENCE)
        return [SweepShare(**dict(row)) for row in found]

    async def get_sweeper(self, *, limit: int = 10_000) -> SweeperState:
        return SweeperState(**dict(await self._database.row("get_sweeper", limit)))
