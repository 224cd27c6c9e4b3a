"""Pauses: of runs, and of whole queues and workflows."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.store.memory import details
from holdfast.store.memory.guests import change_runs
from holdfast.store.memory.tables import Tables, TaskRow
from holdfast.store.port import WORK_TOPIC, worker_topic
from holdfast.types import Delivered, Event, Notice, Pause, Scope


def pause_runs(tables: Tables, now: int, run_ids: Sequence[UUID], reason: str | None) -> Delivered:
    """Let nothing more of runs be claimed, and tell who holds one."""
    told = details.write(reason=reason)

    def pause(run_id: UUID) -> list[Notice]:
        tables.append(run_id, Event("WorkflowPaused", None, told, now))
        for task in _tasks(tables, run_id):
            task.paused = True
        holder = tables.turn(run_id).worker
        return [] if holder is None else [Notice(worker_topic(holder), str(run_id))]

    return change_runs(tables, run_ids, lambda run_id: tables.turn(run_id).paused, pause)


def resume_runs(tables: Tables, now: int, run_ids: Sequence[UUID]) -> Delivered:
    """Let runs go on; one that was not to start yet still does not."""

    def resume(run_id: UUID) -> list[Notice]:
        tables.append(run_id, Event("WorkflowResumed", None, None, now))
        notices: list[Notice] = []
        for task in _tasks(tables, run_id):
            task.paused = False
            if task.kind == "activity":
                notices.append(Notice(WORK_TOPIC, task.queue))
        turn = tables.turn(run_id)
        if turn.lease_no > 0:
            return notices + tables.wake(turn, now)
        return [*notices, Notice(WORK_TOPIC, turn.queue)]

    return change_runs(tables, run_ids, lambda run_id: not tables.turn(run_id).paused, resume)


def _tasks(tables: Tables, run_id: UUID) -> list[TaskRow]:
    return [task for task in tables.tasks.values() if task.run_id == run_id]


def set_pause(
    tables: Tables, now: int, scope: Scope, name: str, paused: bool, reason: str | None
) -> tuple[bool, list[Notice]]:
    """Pause a queue or a workflow, or let it go on; the workers of its queues are told then."""
    if paused == ((scope, name) in tables.pauses):
        return False, []
    if paused:
        tables.pauses[scope, name] = Pause(scope, name, reason, now)
        return True, []
    del tables.pauses[scope, name]
    if scope == "queue":
        return True, [Notice(WORK_TOPIC, name)]
    turns = (task for task in tables.tasks.values() if task.kind == "workflow")
    queues = sorted({task.queue for task in turns if task.name == name})
    return True, [Notice(WORK_TOPIC, queue) for queue in queues]


def list_pauses(tables: Tables) -> list[Pause]:
    """Return what is paused, by scope and name."""
    return [pause for _, pause in sorted(tables.pauses.items())]
