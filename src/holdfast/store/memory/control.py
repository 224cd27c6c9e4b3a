"""Pauses: of runs, and of whole queues and workflows."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.store.memory import details
from holdfast.store.memory.guests import outcomes
from holdfast.store.memory.payloads import check_pause, check_reason
from holdfast.store.memory.tables import TURN, Tables, distinct
from holdfast.store.port import WORK_TOPIC, worker_topic
from holdfast.types import Delivered, Event, Notice, Pause, Scope, WorkerInfo


def pause_runs(tables: Tables, now: int, run_ids: Sequence[UUID], reason: str | None) -> Delivered:
    """Let nothing more of runs be claimed, and tell who holds one."""
    check_reason(reason)
    event = Event("WorkflowPaused", None, details.write(reason=reason), now)
    changed = _set_paused(tables, run_ids, True, event)
    holders = [(run_id, tables.turn(run_id).worker) for run_id in changed]
    told = [Notice(worker_topic(worker), str(run_id)) for run_id, worker in holders if worker]
    return Delivered(outcomes(tables, run_ids, changed), distinct(told))


def resume_runs(tables: Tables, now: int, run_ids: Sequence[UUID]) -> Delivered:
    """Let runs go on; one that was not to start yet still does not."""
    changed = _set_paused(tables, run_ids, False, Event("WorkflowResumed", None, None, now))
    notices: list[Notice] = []
    for run_id in changed:
        for _, task in tables.tasks_of_run(run_id):
            if task.key == TURN and task.lease_no > 0:
                notices += tables.wake(task, now)
            elif task.kind != "approval":
                notices.append(Notice(WORK_TOPIC, task.queue))
    return Delivered(outcomes(tables, run_ids, changed), distinct(notices))


def _set_paused(tables: Tables, run_ids: Sequence[UUID], paused: bool, event: Event) -> list[UUID]:
    """Pause what is not paused, or resume what is; return which runs these were."""
    going_on = sorted(filter(tables.is_running, set(run_ids)))
    changed = [run_id for run_id in going_on if tables.turn(run_id).paused != paused]
    for run_id in changed:
        tables.append(run_id, event)
        for _, task in tables.tasks_of_run(run_id):
            task.paused = paused
    return changed


def set_pause(
    tables: Tables, now: int, scope: Scope, name: str, paused: bool, reason: str | None
) -> tuple[bool, list[Notice]]:
    """Pause a queue or a workflow, or let it go on; the workers of its queues are told then."""
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
    queues = sorted({queue for worker in serving for queue in worker.queues})
    return True, [Notice(WORK_TOPIC, queue) for queue in queues]


def _serves(worker: WorkerInfo, name: str) -> bool:
    return any(handler.rpartition("@")[0] == name for handler in worker.handlers)


def list_pauses(tables: Tables) -> list[Pause]:
    """Return what is paused, by scope and name."""
    return [pause for _, pause in sorted(tables.pauses.items())]
