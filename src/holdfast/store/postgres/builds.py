"""Builds."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.store.postgres.database import Part, read_notices
from holdfast.store.postgres.rows import reader
from holdfast.types import BuildInfo, MovedRuns, RouteChange

_read_build = reader(BuildInfo, "pinned", "needed_for")


class PostgresBuilds(Part):
    async def declare_build(self, app: str, build: str, pinned: Sequence[str]) -> None:
        await self._database.row("declare_build", app, build, pinned)

    async def kept_declarations(self, app: str, build: str | None) -> Sequence[str] | None:
        row = await self._database.row("kept_declarations", app, build)
        return None if row[0] is None else tuple(row[0])

    async def list_builds(self, app: str | None = None) -> list[BuildInfo]:
        found = await self._database.rows("list_builds", app)
        return [
            _read_build(row, pinned=tuple(row["pinned"]), needed_for=tuple(row["needed_for"]))
            for row in found
        ]

    async def promote_build(self, app: str, build: str, *, force: bool = False) -> RouteChange:
        return RouteChange(*await self._database.row("promote_build", app, build, force))

    async def ramp_build(self, app: str, build: str, percent: float) -> RouteChange:
        row = await self._database.row("ramp_build", app, build, percent)
        return RouteChange(row["outcome"])

    async def roll_back_build(self, app: str) -> RouteChange:
        return RouteChange(*await self._database.row("roll_back_build", app))

    async def move_to_build(self, run_ids: Sequence[UUID], build: str | None) -> MovedRuns:
        row = await self._database.row("move_to_build", run_ids, build)
        outcomes = zip(row["run_ids"] or (), row["outcomes"] or (), strict=True)
        return MovedRuns(dict(outcomes), read_notices(row["notices"]))

    async def runs_of_build(
        self, app: str, build: str, *, after: UUID | None = None, limit: int = 1_000
    ) -> list[UUID]:
        return [
            row[0] for row in await self._database.rows("runs_of_build", app, build, after, limit)
        ]
