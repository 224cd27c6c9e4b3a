"""Builds."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from uuid import UUID

from holdfast.store.postgres.calls import each_row, no_answer, only_row
from holdfast.store.postgres.database import Part, read_notices
from holdfast.store.postgres.rows import reader
from holdfast.types import BuildInfo, MovedRuns, RouteChange

_read_build = reader(BuildInfo, "pinned", "needed_for")


class PostgresBuilds(Part):
    declare_build = no_answer()
    kept_declarations = only_row(lambda found: None if found[0] is None else tuple(found[0]))
    list_builds = each_row(
        lambda row: _read_build(
            row, pinned=tuple(row["pinned"]), needed_for=tuple(row["needed_for"])
        )
    )
    promote_build = only_row(lambda found: RouteChange(*found))
    ramp_build = only_row(lambda found: RouteChange(found["outcome"]))
    roll_back_build = only_row(lambda found: RouteChange(*found))
    runs_of_build = each_row(itemgetter(0))

    async def move_to_build(self, run_ids: Sequence[UUID], build: str | None) -> MovedRuns:
        row = await self._database.row("move_to_build", run_ids, build)
        outcomes = zip(row["run_ids"] or (), row["outcomes"] or (), strict=True)
        return MovedRuns(dict(outcomes), read_notices(row["notices"]))
