"""The ends of runs, and what follows from them: parents are told, children are stopped.

A run ends by its own commit or from outside, and many may end at once. First all their logs get
their last event, then the parents are told, and at last the close policies are applied to children.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from uuid import UUID

from holdfast.codec import raw
from holdfast.store.memory import details
from holdfast.store.memory.choosing import place_notices
from holdfast.store.memory.large_payloads import use_payloads
from holdfast.store.memory.rows import TURN, RunRow, StepRow
from holdfast.store.memory.signals import refuse_askers
from holdfast.store.memory.stats import count_ends
from holdfast.store.memory.tables import Tables
from holdfast.store.memory.traces import keep_ends
from holdfast.store.port import worker_topic
from holdfast.types import EndStatus, Event, Notice

_REASON = details.write(reason="its parent ended")


def end_from_outside(
    tables: Tables,
    run_ids: Iterable[UUID],
    status: EndStatus,
    event: Event,
    *,
    errors: Mapping[UUID, str] | None = None,
) -> tuple[list[UUID], list[Notice]]:
    """End the runs that have not ended, without their code; return their ids, and notices.

    The notices are for waiters, parents, and workers that hold a turn or an activity of them.
    """
    ended = sorted(filter(tables.is_running, set(run_ids)))
    if not ended:
        return [], []
    notices = _holder_notices(tables, ended) + place_notices(tables, event.at, ended)
    for run_id in ended:
        tables.append(run_id, event)
        keep_started(tables, event.at, run_id)
    for run_id in ended:  # before a key is freed: none of them is to have it
        tables.runs[run_id].status = status
    for run_id in ended:
        notices += tables.end(run_id, status, event.at, error=(errors or {}).get(run_id))
    count_ends(tables, event.at, ended, status)
    keep_ends(tables, event.at, ended)
    notices += tell_parents(tables, event.at, ended)
    notices += close_children(tables, event.at, ended)
    if status != "failed":  # a retry answers
        notices += refuse_askers(tables, event.at, ended, status)
    return ended, notices


def _holder_notices(tables: Tables, run_ids: Iterable[UUID]) -> list[Notice]:
    """Return the notices that tell workers to drop turns and activities."""
    return [
        Notice(worker_topic(task.worker), str(run_id) if key == TURN else f"{run_id} {key}")
        for run_id in run_ids
        for (_, key), task in tables.tasks_of_run(run_id)
        if task.worker is not None
    ]


def keep_started(tables: Tables, now: int, run_id: UUID) -> None:
    """Record which single steps of a run are under way: its tasks are about to be deleted."""
    for (_, key), task in tables.tasks_of_run(run_id):
        if task.kind not in ("step", "child") or ":" in key or not task.has_begun(now):
            continue
        step = tables.steps[run_id].setdefault(key, StepRow())
        if step.status == "created":
            step.status, step.initial_tasks, step.remaining_tasks = "started", 1, 1
            step.attempts, step.worker = task.attempts, task.worker
            step.started_at = task.started_at


def tell_parents(tables: Tables, now: int, run_ids: Iterable[UUID]) -> list[Notice]:
    """Tell the parents of runs that have ended, except parents that have ended themselves."""
    notices: list[Notice] = []
    steps: defaultdict[UUID, list[UUID]] = defaultdict(list)  # by the flow's run
    for run_id in run_ids:
        row = tables.runs[run_id]
        if row.parent is None or row.status == "continued":
            continue
        if not tables.is_running(row.parent.run_id):
            continue
        use_payloads(tables, row.parent.run_id, [row.output])
        if tables.runs[row.parent.run_id].is_flow:
            steps[row.parent.run_id].append(run_id)
            continue
        event = _end_of_child(run_id, row, row.parent.key, now)
        notices += tables.tell(row.parent.run_id, event)
    for parent_id in sorted(steps):
        if tables.is_running(parent_id):
            notices += tables.nesting.tell(tables, now, parent_id, sorted(steps[parent_id]))
    return notices


def _end_of_child(run_id: UUID, row: RunRow, key: str, now: int) -> Event:
    if row.status == "completed":
        output = raw(row.output)
        told = details.write(child_run_id=str(run_id), output=output)
        return Event("ChildCompleted", key, told, now)
    error = raw(row.error)
    told = details.write(child_run_id=str(run_id), status=row.status, error=error)
    return Event("ChildFailed", key, told, now)


def close_children(tables: Tables, now: int, run_ids: Iterable[UUID]) -> list[Notice]:
    """Apply the close policies of the open children of runs that have ended, down the tree."""
    children = [child for run_id in run_ids for child in tables.open_children(run_id)]
    policies = {child: tables.close_policy(child) for child in children}
    terminated = [child for child in children if policies[child] == "terminate"]
    cancelled = {child: _REASON for child in children if policies[child] == "cancel"}
    event = Event("WorkflowTerminated", None, _REASON, now)
    _, notices = end_from_outside(tables, terminated, "terminated", event)
    return notices + request_cancels(tables, now, cancelled)[1]


def request_cancels(
    tables: Tables, now: int, reasons: Mapping[UUID, str]
) -> tuple[list[UUID], list[Notice]]:
    """Ask runs to stop, unless they have ended or were asked before; return those it asked.

    `reasons` are the details of the requests. A run ends at once if there is nothing to clean up:
    no worker ever had it (nor its origin, for a fork), or it is a run of a flow that has no steps
    that always run at the end, or whose delayed start has not come.
    """
    asked = [run_id for run_id in sorted(reasons) if _can_be_asked(tables, run_id)]
    for run_id in asked:
        tables.append(run_id, Event("WorkflowCancelRequested", None, reasons[run_id], now))
    lasting = [run_id for run_id in asked if _has_last_steps(tables, now, run_id)]
    notices = tables.nesting.cancel(tables, now, lasting) if lasting else []
    others = [run_id for run_id in asked if run_id not in lasting]
    untouched = [run_id for run_id in others if _has_nothing_to_clean_up(tables, run_id)]
    event = Event("WorkflowCanceled", None, None, now)
    notices += end_from_outside(tables, untouched, "cancelled", event)[1]
    for run_id in filter(tables.is_running, others):
        notices += tables.wake(tables.turn(run_id), now)
    return asked, notices


def _has_last_steps(tables: Tables, now: int, run_id: UUID) -> bool:
    """Return True for a run of a flow that has begun and has steps that always run at the end."""
    run = tables.runs[run_id]
    return run.is_flow and (run.due_at or 0) <= now and bool(tables.shapes[run.handler].last)


def _has_nothing_to_clean_up(tables: Tables, run_id: UUID) -> bool:
    run = tables.runs[run_id]
    begun = run.clock_at is not None or tables.turn(run_id).started_at is not None
    return run.is_flow or not begun


def _can_be_asked(tables: Tables, run_id: UUID) -> bool:
    asked = (row.event.type == "WorkflowCancelRequested" for row in tables.logs.get(run_id, []))
    return tables.is_running(run_id) and not any(asked)
