"""Approvals: waits that a person decides."""

from __future__ import annotations

from uuid import UUID

from holdfast.store.postgres import rows
from holdfast.store.postgres.connections import Database
from holdfast.types import Approval, Decided, Decision


async def decide_approval(database: Database, decision: Decision) -> Decided:
    """Decide an approval; the first decision wins."""
    row = await database.row(
        "decide_approval",
        decision.run_id,
        decision.key,
        decision.decision_id,
        decision.approved,
        decision.by,
        decision.feedback,
        decision.values,
    )
    standing = None if row["event_type"] is None else rows.event(row)
    return Decided(row["outcome"], standing, rows.notices(row["notices"]))


async def list_approvals(database: Database, run_id: UUID | None, limit: int) -> list[Approval]:
    """Return open approvals, the oldest first."""
    found = await database.rows("list_approvals", run_id, limit)
    return [
        Approval(
            run_id=row["run_id"],
            key=row["key"],
            workflow=row["workflow"],
            queue=row["queue"],
            requested_at=row["requested_at"],
            payload=row["payload"],
        )
        for row in found
    ]
