"""Approvals: waits that a person decides."""

from __future__ import annotations

from msgspec.structs import astuple

from holdfast.store.postgres.calls import each_row
from holdfast.store.postgres.database import Part, read_notices
from holdfast.store.postgres.rows import read_event, reader
from holdfast.types import Approval, Decided, Decision

_read_approval = reader(Approval)


class PostgresApprovals(Part):
    list_approvals = each_row(reader(Approval))

    async def decide_approval(self, decision: Decision) -> Decided:
        row = await self._database.row("decide_approval", *astuple(decision))
        standing = None if row["event_type"] is None else read_event(row)
        return Decided(row["outcome"], standing, read_notices(row["notices"]))
