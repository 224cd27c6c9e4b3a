"""Pauses of runs, queues and workflows; runs that are rescheduled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from holdfast.details import Rescheduled
from holdfast.events import RESCHEDULED, write_details
from holdfast.store.memory import details
from holdfast.store.memory.choosing import place_notices
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.external import change_details, outcomes
from holdfast.store.memory.flows.rows import split_key
from holdfast.store.memory.payloads import check_pause, check_reason, check_reschedule
from holdfast.store.memory.rows import NEVER, TURN, RunRow, TaskRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.store.port import WORK_TOPIC, worker_topic
from holdfast.types import (
    DEBOUNCE,
    SINGLETON,
    THROTTLE,
    Delivered,
    Delivery,
    Event,
    Notice,
    Pause,
    Reschedule,
    Scope,
    WorkerInfo,
)

_OF_RULES: Final = (SINGLETON, DEBOUNCE, THROTTLE)


class MemoryControl(Part):
    async def pause_runs(
        self, run_ids: Sequence[UUID], *, reason: str | None = None, by: str | None = None
    ) -> Delivered:
        async with self._transaction() as (tables, now):
            check_reason(reason, by)
            event = Event("WorkflowPaused", None, change_details(reason, by), now)
            changed = _set_paused(tables, run_ids, True, event)
            holders = [(run_id, tables.turn(run_id).worker) for run_id in changed]
            told = [
                Notice(worker_topic(worker), str(run_id)) for run_id, worker in holders if worker
            ]
            return Delivered(outcomes(tables, run_ids, changed), distinct(told))

    async def resume_runs(self, run_ids: Sequence[UUID], *, by: str | None = None) -> Delivered:
        async with self._transaction() as (tables, now):
            check_reason(None, by)
            who = None if by is None else details.write(by=by)
            resumed = Event("WorkflowResumed", None, who, now)
            changed = _set_paused(tables, run_ids, False, resumed)
            notices: list[Notice] = []
            for run_id in changed:
                for _, task in tables.tasks_of_run(run_id):
                    if task.key == TURN and task.lease_no > 0:
                        notices += tables.wake(task, now)
                    elif task.kind != "approval":
                        notices.append(Notice(WORK_TOPIC, task.queue))
            notices += tables.nesting.resume(tables, now, changed)
            return Delivered(outcomes(tables, run_ids, changed), distinct(notices))

    async def reschedule_runs(
        self,
        run_ids: Sequence[UUID],
        change: Reschedule,
        *,
        reason: str | None = None,
        by: str | None = None,
    ) -> Delivered:
        async with self._transaction() as (tables, now):
            check_reason(reason, by)
            check_reschedule(change)
            return reschedule(tables, now, run_ids, change, reason, by)

    async def set_pause(
        self, scope: Scope, name: str, *, paused: bool, reason: str | None = None
    ) -> tuple[bool, list[Notice]]:
        async with self._transaction() as (tables, now):
            check_pause(scope, name, reason)
            if paused == ((scope, name) in tables.pauses):
                return False, []
            if paused:
                tables.pauses[scope, name] = Pause(scope, name, reason, now)
                return True, []
            del tables.pauses[scope, name]
            if scope == "queue":
                return True, [Notice(WORK_TOPIC, name)]
            serving = (worker for worker in tables.workers.values() if _serves(worker, name))
            queues = {queue for worker in serving for queue in worker.queues}
            queues |= _resume_steps(tables, now, name)
            return True, [Notice(WORK_TOPIC, queue) for queue in sorted(queues)]

    async def list_pauses(self) -> list[Pause]:
        async with self._transaction() as (tables, _):
            return [pause for _, pause in sorted(tables.pauses.items())]


def _resume_steps(tables: Tables, now: int, flow: str) -> set[str]:
    """Start the runs that steps of a flow wait for; return the queues that have work by it."""
    runs = [run_id for run_id, row in tables.runs.items() if row.is_flow and row.new.name == flow]
    notices = tables.nesting.resume(tables, now, sorted(filter(tables.is_running, runs)))
    return {notice.payload for notice in notices if notice.topic == WORK_TOPIC}


def _set_paused(tables: Tables, run_ids: Sequence[UUID], paused: bool, event: Event) -> list[UUID]:
    """Pause or resume the runs, and return those that this changed."""
    going_on = sorted(filter(tables.is_running, set(run_ids)))
    changed = [
        run_id
        for run_id in going_on
        if tables.turn(run_id).paused != paused
        or (not paused and _waits_stuck(tables.turn(run_id), event.at))
    ]
    for run_id in changed:
        if not paused:
            tables.turn(run_id).stuck_tries = 0
        tables.append(run_id, event)
        for _, task in tables.tasks_of_run(run_id):
            task.paused = paused
    return changed


def _waits_stuck(turn: TaskRow, now: int) -> bool:
    """Return True if a run is stuck, and is to be tried again later."""
    return turn.stuck is not None and turn.worker is None and turn.visible_at > now


def _serves(worker: WorkerInfo, name: str) -> bool:
    return any(handler.rpartition("@")[0] == name for handler in worker.handlers)


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
