"""Appends to a run's log by others than its worker: signals, cancels, ends from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from holdfast.store.memory import details
from holdfast.store.memory.ends import end_from_outside, is_cancelling, request_cancel
from holdfast.store.memory.payloads import check_signal
from holdfast.store.memory.tables import Tables, distinct
from holdfast.types import Delivered, Delivery, Event, NewSignal, Notice, update_topic


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
    if signal.signal_id is not None and _has(tables, signal.run_id, signal.signal_id):
        return "duplicate"
    return "delivered" if tables.is_running(signal.run_id) else "ended"


def _has(tables: Tables, run_id: UUID, signal_id: str) -> bool:
    events = (row.event for row in tables.logs[run_id])
    return any(event.type == "SignalReceived" and event.key == signal_id for event in events)


def _deliver(tables: Tables, now: int, signal: NewSignal) -> list[Notice]:
    told = details.write(signal_name=signal.name, input=details.raw(signal.payload))
    topic = signal.name
    if signal.update:
        update = details.write(update=True, reply_to=signal.reply_to)
        told, topic = f"{told[:-1]},{update[1:]}", update_topic(signal.name)
    tables.append(signal.run_id, Event("SignalReceived", signal.signal_id, told, now))
    return tables.wake_for(signal.run_id, topic, now)


def change_runs(
    tables: Tables,
    run_ids: Sequence[UUID],
    is_done: Callable[[UUID], bool],
    change: Callable[[UUID], list[Notice]],
) -> Delivered:
    """Change the runs that go on, by id, each once; outcomes keep the order given."""
    outcomes: dict[int, Delivery] = {}
    notices: list[Notice] = []
    for place, run_id in sorted(enumerate(run_ids), key=lambda asked: (asked[1], asked[0])):
        if run_id not in tables.runs:
            outcomes[place] = "missing"
        elif not tables.is_running(run_id):
            outcomes[place] = "ended"
        elif is_done(run_id):
            outcomes[place] = "duplicate"
        else:
            outcomes[place] = "delivered"
            notices += change(run_id)
    return Delivered([outcomes[place] for place in range(len(run_ids))], distinct(notices))


def cancel_runs(tables: Tables, now: int, run_ids: Sequence[UUID], reason: str | None) -> Delivered:
    """Ask runs to stop; one that no worker ever had has nothing to clean up and ends at once."""
    told = details.write(reason=reason)
    return change_runs(
        tables,
        run_ids,
        lambda run_id: is_cancelling(tables, run_id),
        lambda run_id: request_cancel(tables, now, run_id, told),
    )


def terminate_runs(
    tables: Tables, now: int, run_ids: Sequence[UUID], reason: str | None
) -> Delivered:
    """End runs without their code."""
    event = Event("WorkflowTerminated", None, details.write(reason=reason), now)
    return change_runs(
        tables,
        run_ids,
        lambda _: False,
        lambda run_id: end_from_outside(tables, now, run_id, "terminated", event),
    )


def time_out_runs(tables: Tables, now: int, limit: int) -> tuple[int, int | None, list[Notice]]:
    """End runs at their deadline, the longest overdue first."""
    due = [run_id for deadline_at, run_id in tables.deadlines() if deadline_at <= now][:limit]
    event = Event("WorkflowTimedOut", None, None, now)
    ended, notices = 0, list[Notice]()
    for run_id in sorted(due):
        if tables.is_running(run_id):  # its parent's end may just have ended it
            ended += 1
            notices += end_from_outside(tables, now, run_id, "timed_out", event)
    later = tables.deadlines()
    return ended, later[0][0] if later else None, distinct(notices)
