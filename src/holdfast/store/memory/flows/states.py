"""How far runs of flows are: their steps, as callers see them."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.store.memory.details import read
from holdfast.store.memory.flows.inputs import step_output
from holdfast.store.memory.flows.rows import known_step, shape_had, shape_of, split_key
from holdfast.store.memory.rows import NEVER, StepRow, TaskRow
from holdfast.store.memory.tables import Tables
from holdfast.types import FlowStepState, OpenStepTasks, StepPhase, StepShape
from holdfast.values.composing import compose

_Group: TypeAlias = tuple[str, StepPhase, str, str]  # step, phase, queue, worker or ""
_LAST = chr(0x10FFFF)  # sorts after the ids of workers


class _Failed(msgspec.Struct):
    """What a task of a step keeps of its last attempt."""

    error: msgspec.Raw


class _Failure(msgspec.Struct):
    """What the error of a step says of the attempt that failed it."""

    step: str | None = None
    attempts: int | None = None
    worker: str | None = None


def steps_of(tables: Tables, now: int, run_id: UUID, *, outputs: bool) -> list[FlowStepState]:
    """Return the steps of a run of a flow, in the order of its shape."""
    states = [_state(tables, now, run_id, step) for step in shape_had(tables, run_id).shape.steps]
    return states if outputs else [replace(state, output=None) for state in states]


def open_tasks(tables: Tables, run_id: UUID, now: int) -> list[OpenStepTasks]:
    """Return the open tasks of a run's steps, those of one step and phase together."""
    together: defaultdict[_Group, list[TaskRow]] = defaultdict(list)
    order = {slug: index for index, slug in enumerate(shape_of(tables, run_id).steps)}
    for (_, key), task in tables.tasks_of_run(run_id):
        if task.kind == "step":
            phase = _phase(task, now)
            if phase == "waiting":
                task = replace(task, visible_at=now)
            together[split_key(key)[0], phase, task.queue, task.worker or ""].append(task)
    groups = sorted(together, key=lambda group: (order[group[0]], group[1], group[3] or _LAST))
    return [_open(group, together[group]) for group in groups]


def _phase(task: TaskRow, now: int) -> StepPhase:
    if task.worker is not None:
        return "running"
    if task.visible_at == NEVER:
        return "waiting"
    if task.visible_at <= now:
        return "due"
    return "delayed" if task.heartbeat is None else "retrying"


def _open(group: _Group, tasks: list[TaskRow]) -> OpenStepTasks:
    step, phase, queue, worker = group
    failed = [task for task in tasks if task.heartbeat is not None]
    newest = min(failed, key=lambda task: (-task.visible_at, task.key), default=None)
    started = [task.started_at for task in tasks if task.started_at is not None]
    return OpenStepTasks(
        step=step,
        phase=phase,
        queue=queue,
        tasks=len(tasks),
        visible_at=min(task.visible_at for task in tasks),
        attempts=max(task.attempts for task in tasks),
        worker=worker or None,
        started_at=min(started, default=None),
        error=None if newest is None else _error(newest.heartbeat),
        index=None if newest is None else split_key(newest.key)[1],
        stuck=max((task.stuck for task in tasks if task.stuck is not None), default=None),
    )


def _error(heartbeat: str | None) -> str:
    error = read(heartbeat, _Failed).error
    return bytes(error).decode()


def _state(tables: Tables, now: int, run_id: UUID, step: StepShape) -> FlowStepState:
    """Return a step: what is stored of it, and for a single step what its task tells."""
    row = known_step(tables, (run_id, step.slug)) or StepRow()
    task = tables.tasks.get((run_id, step.slug))
    status, attempts, worker, started_at = row.status, row.attempts, row.worker, row.started_at
    if task is not None:
        if status == "created" and task.has_begun(now):
            status = "started"
        attempts = task.attempts if attempts is None else attempts
        worker = task.worker if worker is None else worker
        started_at = task.started_at if started_at is None else started_at
    if row.error is not None and (failure := read(row.error, _Failure)).step == step.slug:
        attempts = failure.attempts if attempts is None else attempts
        worker = failure.worker if worker is None else worker
    return compose(
        FlowStepState,
        row,
        step,
        run_id=run_id,
        step=step.slug,
        deps=tuple(shape_had(tables, run_id).deps(step.slug)),
        status=status,
        output=step_output(tables, (run_id, step.slug)),
        attempts=attempts,
        worker=worker,
        started_at=started_at,
        delay_seconds=step.start_delay or 0,
        failed_tasks=row.failed_tasks or 0,
    )
