"""External events: signals, cancel requests and ends that come from outside a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from holdfast.store.memory import details
from holdfast.store.memory.database import Part
from holdfast.store.memory.ends import end_from_outside, request_cancels
from holdfast.store.memory.payloads import check_reason
from holdfast.store.memory.signals import send_signals
from holdfast.store.memory.tables import Tables, distinct
from holdfast.types import Delivered, Delivery, Event, NewSignal, Notice


class MemoryExternal(Part):
    async def signal_runs(self, signals: Sequence[NewSignal]) -> Delivered:
        async with self._transaction() as (tables, now):
            return send_signals(tables, now, signals)

    async def cancel_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
    ) -> Delivered:
        async with self._transaction() as (tables, now):
            check_reason(reason, by)
            reasons = dict.fromkeys(run_ids, change_details(reason, by))
            asked, notices = request_cancels(tables, now, reasons)
            return Delivered(outcomes(tables, run_ids, asked), distinct(notices))

    async def terminate_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
    ) -> Delivered:
        async with self._transaction() as (tables, now):
            check_reason(reason, by)
            event = Event("WorkflowTerminated", None, change_details(reason, by), now)
            ended, notices = end_from_outside(tables, run_ids, "terminated", event)
            return Delivered(outcomes(tables, run_ids, ended), distinct(notices))

    async def time_out_runs(self, *, limit: int = 100) -> tuple[int, int | None, list[Notice]]:
        async with self._transaction() as (tables, now):
            due = [run_id for deadline_at, run_id in tables.deadlines() if deadline_at <= now][
                :limit
            ]
            event = Event("WorkflowTimedOut", None, None, now)
            ended, notices = end_from_outside(tables, due, "timed_out", event)
            later = tables.deadlines()
            return len(ended), later[0][0] if later else None, distinct(notices)


def change_details(reason: str | None, by: str | None) -> str:
    """Return the details of an event that ends, stops or pauses a run."""
    return details.write(reason=reason) if by is None else details.write(reason=reason, by=by)


def outcomes(tables: Tables, run_ids: Sequence[UUID], changed: Iterable[UUID]) -> list[Delivery]:
    """Return the outcome for each run of a call, in the order given.

    A running run that was not changed had been changed before, or was given twice.
    """
    new = set(changed)
    answers: list[Delivery] = []
    for run_id in run_ids:
        if run_id in new:
            answers.append("delivered")
            new.remove(run_id)
        elif run_id not in tables.runs:
            answers.append("missing")
        else:
            answers.append("duplicate" if tables.is_running(run_id) else "ended")
    return answers
