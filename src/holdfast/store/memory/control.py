"""Pauses of runs, queues and workflows; runs that are rescheduled."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.store.memory import details
from holdfast.store.memory.database import Part
from holdfast.store.memory.external import change_details, outcomes
from holdfast.store.memory.payloads import check_pause, check_reason, check_reschedule
from holdfast.store.memory.rescheduling import reschedule
from holdfast.store.memory.rows import TURN, TaskRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.store.port import WORK_TOPIC, worker_topic
from holdfast.types import Delivered, Event, Notice, Pause, Reschedule, Scope, WorkerInfo


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
