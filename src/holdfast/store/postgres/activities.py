"""Activities: how their attempts end, and which have not ended."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.store.postgres.database import Part, columns, read_notices
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
            *columns(ends, "run_id", "key", "lease_no", "result", "error", "retryable"),
            *columns(ends, "timed_out", "started_at", "details", "delay_seconds"),
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
