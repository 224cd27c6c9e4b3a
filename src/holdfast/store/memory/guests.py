"""Appends to a run's log by others than its worker: signals, cancels, ends from outside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from uuid import UUID

from holdfast.store.memory.payloads import check_signal
from holdfast.store.memory.tables import Tables, distinct
from holdfast.store.port import worker_topic
from holdfast.types import Delivered, Delivery, EndStatus, Event, NewSignal, Notice


def signal_runs(tables: Tables, now: int, signals: Sequence[NewSignal]) -> Delivered:
    """Append each signal, and wake the run where it awaits that name."""
    for signal in signals:
        check_signal(signal)
    answer = Delivered([], [])
    for signal in signals:
        outcome = _signal_outcome(tables, signal)
        answer.outcomes.append(outcome)
        if outcome == "delivered":
            answer.notices.extend(_deliver(tables, now, signal))
    return Delivered(answer.outcomes, distinct(answer.notices))


def _signal_outcome(tables: Tables, signal: NewSignal) -> Delivery:
    if signal.run_id not in tables.runs:
        return "missing"
    # Before the status: who repeats a signal that the run consumed before it ended hears so.
    if signal.signal_id is not None and _has(tables, signal.run_id, "SignalReceived", signal):
        return "duplicate"
    return "delivered" if tables.runs[signal.run_id].status == "running" else "ended"


def _has(tables: Tables, run_id: UUID, event_type: str, signal: NewSignal | None = None) -> bool:
    events = (row.event for row in tables.logs[run_id])
    return any(
        event.type == event_type and (signal is None or event.key == signal.signal_id)
        for event in events
    )


def _deliver(tables: Tables, now: int, signal: NewSignal) -> list[Notice]:
    details = f'{{"signal_name":{json.dumps(signal.name)},"input":{signal.payload}}}'
    tables.append(signal.run_id, Event("SignalReceived", signal.signal_id, details, now))
    task = tables.turn(signal.run_id)
    if task.worker is None and signal.name not in task.awaiting:
        return []
    return tables.wake(task, now)


def cancel_runs(tables: Tables, now: int, run_ids: Sequence[UUID], reason: str | None) -> Delivered:
    """Ask runs to stop; one that no worker ever had has nothing to clean up and ends at once."""
    outcomes: list[Delivery] = []
    notices: list[Notice] = []
    for run_id in run_ids:
        outcome = _outcome(tables, run_id)
        if outcome == "delivered" and _has(tables, run_id, "WorkflowCancelRequested"):
            outcome = "duplicate"
        outcomes.append(outcome)
        if outcome == "delivered":
            event = Event("WorkflowCancelRequested", None, json.dumps({"reason": reason}), now)
            tables.append(run_id, event)
            if tables.turn(run_id).lease_no == 0:
                notices += _end(tables, now, run_id, "cancelled", "WorkflowCanceled")
            else:
                notices += tables.wake(tables.turn(run_id), now)
    return Delivered(outcomes, distinct(notices))


def terminate_runs(
    tables: Tables, now: int, run_ids: Sequence[UUID], reason: str | None
) -> Delivered:
    """End runs without their code."""
    outcomes: list[Delivery] = []
    notices: list[Notice] = []
    details = json.dumps({"reason": reason})
    for run_id in run_ids:
        outcomes.append(_outcome(tables, run_id))
        if outcomes[-1] == "delivered":
            notices += _end(tables, now, run_id, "terminated", "WorkflowTerminated", details)
    return Delivered(outcomes, distinct(notices))


def time_out_runs(tables: Tables, now: int, limit: int) -> tuple[int, int | None, list[Notice]]:
    """End runs at their deadline, the longest overdue first."""
    deadlines = tables.deadlines()
    due = [run_id for deadline_at, run_id in deadlines if deadline_at <= now][:limit]
    notices: list[Notice] = []
    for run_id in due:
        notices += _end(tables, now, run_id, "timed_out", "WorkflowTimedOut")
    later = [deadline_at for deadline_at, _ in deadlines[len(due) :]]
    return len(due), later[0] if later else None, distinct(notices)


def _outcome(tables: Tables, run_id: UUID) -> Delivery:
    if run_id not in tables.runs:
        return "missing"
    return "delivered" if tables.runs[run_id].status == "running" else "ended"


def _end(
    tables: Tables,
    now: int,
    run_id: UUID,
    status: EndStatus,
    event_type: str,
    details: str | None = None,
) -> list[Notice]:
    """End a run from outside: its waiters are told, and who holds it, so that it lets go."""
    holder = tables.turn(run_id).worker
    tables.append(run_id, Event(event_type, None, details, now))
    notices = tables.end(run_id, status, now)
    return notices if holder is None else [*notices, Notice(worker_topic(holder), str(run_id))]
