"""Approvals: waits that a person decides."""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import astuple

from holdfast.store.postgres.database import Part, read_notices
from holdfast.store.postgres.rows import read_event, reader
from holdfast.types import Approval, Decided, Decision

_read_approval = reader(Approval)


class PostgresApprovals(Part):
    async def decide_approval(self, decision: Decision) -> Decided:
        row = await self._database.row("decide_approval", *astuple(decision))
        standing = None if row["event_type"] is None else read_event(row)
        return Decided(row["outcome"], standing, read_notices(row["notices"]))

    async def list_approvals(
        self, *, run_id: UUID | None = None, limit: int = 100
    ) -> list[Approval]:
        found = await self._database.rows("list_approvals", run_id, limit)
        return [_read_approval(row) for row in found]
