"""Activities: how their attempts end, and which have not ended."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.store.postgres.database import Part, read_notices
from holdfast.store.postgres.rows import reader
from holdfast.types import ActivitiesEnded, ActivityEnd, Notice, OpenActivity

_read_open = reader(OpenActivity, "run_id")


class PostgresActivities(Part):
    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        units = [end.units for end in ends]
        row = await self._database.row(
            "end_activities",
            worker_id,
            [end.run_id for end in ends],
            [end.key for end in ends],
            [end.lease_no for end in ends],
            [end.result for end in ends],
            [end.error for end in ends],
            [end.retryable for end in ends],
            [end.timed_out for end in ends],
            [end.started_at for end in ends],
            [end.details for end in ends],
            [end.delay_seconds for end in ends],
            self._database.tell,
            units if any(each is not None for each in units) else None,
        )
        return ActivitiesEnded(row["now"], row["outcomes"] or [], read_notices(row["notices"]))

    async def time_out_activities(
        self, *, limit: int = 100
    ) -> tuple[int, int | None, list[Notice]]:
        row = await self._database.row("time_out_activities", limit)
        return row["ended"], row["next_due_at"], read_notices(row["notices"])

    async def list_activities(self, run_id: UUID, *, limit: int = 100) -> list[OpenActivity]:
        found = await self._database.rows("list_activities", run_id, limit)
        return [_read_open(row, run_id=run_id) for row in found]
