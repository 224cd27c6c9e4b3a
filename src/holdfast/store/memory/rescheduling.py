"""Change the queue, the start and the deadline of runs that have not ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from holdfast.details import Rescheduled
from holdfast.events import RESCHEDULED, write_details
from holdfast.store.memory.choosing import place_notices
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.external import outcomes
from holdfast.store.memory.flows.rows import split_key
from holdfast.store.memory.rows import NEVER, RunRow, TaskRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.store.port import WORK_TOPIC
from holdfast.types import (
    DEBOUNCE,
    SINGLETON,
    THROTTLE,
    Delivered,
    Delivery,
    Event,
    Notice,
    Reschedule,
)

_OF_RULES: Final = (SINGLETON, DEBOUNCE, THROTTLE)


def reschedule(
    tables: Tables,
    now: int,
    run_ids: Sequence[UUID],
    change: Reschedule,
    reason: str | None,
    by: str | None,
) -> Delivered:
    """Change runs; see `ControlStore.reschedule_runs`."""
    changed: list[UUID] = []
    refused: dict[UUID, Delivery] = {}
    notices: list[Notice] = []
    for run_id in sorted(filter(tables.is_running, set(run_ids))):
        run, turn = tables.runs[run_id], tables.turn(run_id)
        if (why := _refusal(run, turn, change)) is not None:
            refused[run_id] = why
            continue
        details = _changes(now, run, turn, change)
        if details == Rescheduled():
            continue
        notices += _carry_out(tables, now, run, turn, details, change)
        details.reason, details.by = reason, by
        tables.append(run_id, Event(RESCHEDULED, None, write_details(details), now))
        changed.append(run_id)
    found = outcomes(tables, run_ids, changed)
    answers: list[Delivery] = [
        refused.get(run_id, each) for run_id, each in zip(run_ids, found, strict=True)
    ]
    return Delivered(answers, distinct(notices))


def _refusal(run: RunRow, turn: TaskRow, change: Reschedule) -> Delivery | None:
    """Return why a run cannot be changed so."""
    starts = change.start_at is not None or change.delay_seconds is not None
    ends = change.deadline_at is not None or change.timeout_seconds is not None
    if run.is_flow and (starts or change.queue is not None):
        return "flow"
    if starts and turn.lease_no > 0:
        return "begun"
    is_ruled = any(each in _OF_RULES for each in turn.awaiting)
    return "ruled" if is_ruled and (starts or ends or change.no_deadline) else None


def _changes(now: int, run: RunRow, turn: TaskRow, change: Reschedule) -> Rescheduled:
    """Return what changes. A start in the past is none for a run that is due."""
    details = Rescheduled()
    start_at = change.start_at
    if change.delay_seconds is not None:
        start_at = now + to_micros(change.delay_seconds)
    if change.queue not in (None, turn.queue):
        details.queue = change.queue
    if start_at not in (None, turn.visible_at) and max(start_at or 0, turn.visible_at) > now:
        details.start_at = start_at
    could_begin_at = max(run.created_at, run.due_at or 0)
    deadline_at = run.deadline_at
    if change.no_deadline:
        deadline_at = None
    elif change.deadline_at is not None:
        deadline_at = change.deadline_at
    elif change.timeout_seconds is not None:
        begins_at = could_begin_at if start_at is None else start_at
        begins_at = now if turn.lease_no > 0 else max(now, begins_at)
        deadline_at = begins_at + to_micros(change.timeout_seconds)
    elif details.start_at is not None and deadline_at is not None and run.clock_at is None:
        deadline_at += max(now, details.start_at) - could_begin_at
    if deadline_at != run.deadline_at:
        details.deadline_at = deadline_at
    return details


def _carry_out(
    tables: Tables, now: int, run: RunRow, turn: TaskRow, details: Rescheduled, change: Reschedule
) -> list[Notice]:
    """Change a run and its turn, and return what to tell workers."""
    notices: list[Notice] = []
    if details.deadline_at is not msgspec.UNSET:
        run.deadline_at = details.deadline_at
    if details.start_at is not None:
        turn.visible_at = details.start_at
        run.due_at = max(now, details.start_at)
        if (step := _step_of(tables, run)) is not None:
            step.started_at = run.due_at
    if details.queue is not None:
        notices += place_notices(tables, now, [run.new.run_id])
        turn.queue = details.queue
        run.new = msgspec.structs.replace(run.new, queue=details.queue)
    is_moved = details.queue is not None or details.start_at is not None
    if is_moved and turn.worker is None and turn.visible_at < NEVER:
        notices.insert(0, Notice(WORK_TOPIC, turn.queue))
    return notices


def _step_of(tables: Tables, run: RunRow) -> TaskRow | None:
    """Return the task of the step that is a run, which begins with its first one."""
    if run.parent is None:
        return None
    task = tables.tasks.get((run.parent.run_id, run.parent.key))
    is_step = task is not None and task.kind == "child" and task.attempts == 1
    return task if is_step and split_key(run.parent.key)[1] is None else None
