"""External events: signals, cancel requests and ends that come from outside a run."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from holdfast.store.postgres.database import Part, columns, read_notices
from holdfast.types import Delivered, NewSignal, Notice


class PostgresExternal(Part):
    async def signal_runs(self, signals: Sequence[NewSignal]) -> Delivered:
        """Send signals; see `ExternalStore.signal_runs`. A refused value refuses the whole call."""
        row = await self._database.row(
            "signal_runs",
            *columns(signals, "run_id", "name", "payload", "signal_id", "update", "reply_to"),
            self._database.tell,
            [signal.trace for signal in signals],
        )
        return read_delivered(row)

    async def cancel_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
    ) -> Delivered:
        row = await self._database.row("cancel_runs", run_ids, reason, by)
        return read_delivered(row)

    async def terminate_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
    ) -> Delivered:
        row = await self._database.row("terminate_runs", run_ids, reason, by)
        return read_delivered(row)

    async def time_out_runs(self, *, limit: int = 100) -> tuple[int, int | None, list[Notice]]:
        row = await self._database.row("time_out_runs", limit)
        return row["ended"], row["next_due_at"], read_notices(row["notices"])


def read_delivered(row: asyncpg.Record) -> Delivered:
    """Return what became of the runs of a call."""
    return Delivered(row["outcomes"] or [], read_notices(row["notices"]))
