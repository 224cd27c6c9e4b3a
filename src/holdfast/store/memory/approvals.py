"""Approvals: requested by a run, decided by a person; the first decision is final."""

from __future__ import annotations

from uuid import UUID

import msgspec

from holdfast.codec import raw
from holdfast.store.memory import details
from holdfast.store.memory.database import Part
from holdfast.store.memory.payloads import check_decision
from holdfast.store.memory.rows import NEVER, TURN, TaskRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.types import Approval, Decided, Decision, Event, Notice


class _Resolved(msgspec.Struct, frozen=True):
    decision_id: str


class MemoryApprovals(Part):
    async def decide_approval(self, decision: Decision) -> Decided:
        async with self._transaction() as (tables, now):
            check_decision(decision)
            task = _open(tables, decision.run_id, decision.key)
            if task is None:
                return _standing(tables, decision)
            told = details.write(
                approved=decision.approved,
                by=decision.by,
                feedback=decision.feedback,
                decision_id=decision.decision_id,
                values=raw(decision.values),
            )
            event = Event("ApprovalResolved", decision.key, told, now)
            del tables.tasks[decision.run_id, decision.key]
            return Decided("decided", event, distinct(tables.tell(decision.run_id, event)))

    async def list_approvals(
        self, *, run_id: UUID | None = None, limit: int = 100
    ) -> list[Approval]:
        async with self._transaction() as (tables, _):
            found = [
                Approval(
                    run_id=task.run_id,
                    key=task.key,
                    workflow=tables.runs[task.run_id].new.name,
                    queue=task.queue,
                    requested_at=task.started_at or 0,
                    payload=task.payload or "null",
                )
                for task in tables.tasks.values()
                if task.kind == "approval" and run_id in (None, task.run_id)
            ]
            found.sort(key=lambda approval: (approval.requested_at, approval.run_id, approval.key))
            return found[:limit]


def request(tables: Tables, now: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out ApprovalRequested: insert a row that is listed until it is decided."""
    if not tables.is_running(run_id) or event.key is None:
        return []
    turn = tables.turn(run_id)
    tables.tasks[run_id, event.key] = TaskRow(
        run_id=run_id,
        key=event.key,
        kind="approval",
        queue=turn.queue,
        name="",
        version=0,
        priority=turn.priority,
        visible_at=NEVER,
        payload=event.details,
        started_at=now,
    )
    return []


def withdraw(tables: Tables, _: int, run_id: UUID, event: Event) -> list[Notice]:
    """Carry out ApprovalWithdrawn: delete the row of an open approval."""
    if _open(tables, run_id, event.key or TURN) is not None:
        del tables.tasks[run_id, event.key or TURN]
    return []


def _open(tables: Tables, run_id: UUID, key: str) -> TaskRow | None:
    task = tables.tasks.get((run_id, key))
    return task if task is not None and task.kind == "approval" else None


def _standing(tables: Tables, decision: Decision) -> Decided:
    """Return why there is nothing to decide; the log knows it even after the run's end."""
    events = [e for e in tables.read(decision.run_id) if e.key == decision.key]
    resolved = next((e for e in events if e.type == "ApprovalResolved"), None)
    if resolved is not None:
        same = details.read(resolved.details, _Resolved).decision_id == decision.decision_id
        return Decided("duplicate" if same else "conflict", resolved, [])
    asked = any(event.type == "ApprovalRequested" for event in events)
    return Decided("closed" if asked else "missing", None, [])
