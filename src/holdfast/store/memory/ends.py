"""The ends of runs, and what follows from them: children stop, the parent is told.

A run ends by its own commit or from outside. Either way the close policies of its open children
apply first, and then its parent hears of it.
"""

from __future__ import annotations

from uuid import UUID

from holdfast.store.memory import details
from holdfast.store.memory.tables import RunRow, Tables
from holdfast.store.port import worker_topic
from holdfast.types import EndStatus, Event, Notice

_REASON = details.write(reason="its parent ended")


def end_from_outside(
    tables: Tables,
    now: int,
    run_id: UUID,
    status: EndStatus,
    event: Event,
    *,
    error: str | None = None,
) -> list[Notice]:
    """End a run without its code: its waiters are told, and who holds it, so that it lets go."""
    holder = tables.turn(run_id).worker
    tables.append(run_id, event)
    notices = tables.end(run_id, status, now, error=error)
    if holder is not None:
        notices.append(Notice(worker_topic(holder), str(run_id)))
    return notices + settle_end(tables, now, run_id)


def settle_end(tables: Tables, now: int, run_id: UUID) -> list[Notice]:
    """Do what follows from the end of a run that has just ended."""
    notices = _close_children(tables, now, run_id)
    row = tables.runs[run_id]
    if row.parent is None or row.status == "continued":
        return notices
    if not tables.is_running(row.parent.run_id):
        return notices
    event = _end_of_child(run_id, row, row.parent.key, now)
    return notices + tables.tell(row.parent.run_id, event)


def _end_of_child(run_id: UUID, row: RunRow, key: str, now: int) -> Event:
    if row.status == "completed":
        output = details.raw(row.output)
        told = details.write(child_run_id=str(run_id), output=output)
        return Event("ChildCompleted", key, told, now)
    error = details.raw(row.error)
    told = details.write(child_run_id=str(run_id), status=row.status, error=error)
    return Event("ChildFailed", key, told, now)


def _close_children(tables: Tables, now: int, run_id: UUID) -> list[Notice]:
    """Apply the close policies of a run's open children, and so on down the tree."""
    notices: list[Notice] = []
    for child_id in tables.open_children(run_id):
        parent = tables.runs[child_id].parent
        if parent is None or not tables.is_running(child_id):
            continue
        if parent.close == "terminate":
            event = Event("WorkflowTerminated", None, _REASON, now)
            notices += end_from_outside(tables, now, child_id, "terminated", event)
        elif parent.close == "cancel":
            notices += request_cancel(tables, now, child_id, _REASON)
    return notices


def request_cancel(tables: Tables, now: int, run_id: UUID, reason: str) -> list[Notice]:
    """Ask a running run to stop, once; one that no worker ever had ends at once.

    `reason` is the details of the request.
    """
    if is_cancelling(tables, run_id):
        return []
    tables.append(run_id, Event("WorkflowCancelRequested", None, reason, now))
    if tables.turn(run_id).lease_no == 0:
        event = Event("WorkflowCanceled", None, None, now)
        return end_from_outside(tables, now, run_id, "cancelled", event)
    return tables.wake(tables.turn(run_id), now)


def is_cancelling(tables: Tables, run_id: UUID) -> bool:
    """Say whether a run was asked to stop before."""
    return any(row.event.type == "WorkflowCancelRequested" for row in tables.logs[run_id])
