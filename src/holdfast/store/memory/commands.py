"""Carry out commands: what runs ask for by events of their own logs."""

from __future__ import annotations

from uuid import UUID

from holdfast.store.memory import activities, approvals, children
from holdfast.store.memory.tables import Tables
from holdfast.types import Event, Notice, Undelivered


def carry_out(
    tables: Tables, now: int, run_id: UUID, event: Event, undelivered: list[Undelivered]
) -> list[Notice]:
    """Carry out an event of a commit if it is a command; return the notices.

    Signals that cannot be delivered are added to `undelivered`.
    """
    match event.type:
        case "ActivityScheduled":
            return activities.schedule(tables, now, run_id, event)
        case "ActivityCancelRequested":
            return activities.cancel(tables, run_id, event)
        case "ApprovalRequested":
            return approvals.request(tables, now, run_id, event)
        case "ApprovalWithdrawn":
            return approvals.withdraw(tables, run_id, event)
        case "ChildStarted":
            return children.start(tables, now, run_id, event)
        case "ChildCancelRequested":
            return children.cancel(tables, now, run_id, event)
        case "SignalSent":
            return children.signal(tables, now, run_id, event, undelivered)
        case "WorkflowContinuedAsNew":
            return children.continue_as_new(tables, now, run_id, event)
        case _:
            return []
