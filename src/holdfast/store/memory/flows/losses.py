"""Tasks of steps that lose one worker after another: the fourth loss is final."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

import msgspec

from holdfast.store.memory.flows.ends import end_tasks
from holdfast.store.memory.flows.progress import Progress
from holdfast.store.memory.rows import TaskRow
from holdfast.store.memory.tables import Tables
from holdfast.types import ErrorInfo, Notice, StepTaskEnd

_MOST: Final = 3
_LOST: Final = msgspec.json.encode(
    ErrorInfo(kind="holdfast.errors.WorkerLost", message="the task lost 4 workers")
).decode()


def is_lost_for_good(task: TaskRow) -> bool:
    """Return True if a task of a step must not be claimed again, once its lease has run out."""
    is_lost = task.kind == "step" and task.worker is not None
    return is_lost and task.losses >= _MOST and not task.innocent


def lost_tasks(tables: Tables, now: int, run_ids: Iterable[UUID]) -> list[TaskRow]:
    """Return the tasks of runs whose leases ran out for the fourth time."""
    return [
        task
        for run_id in sorted(set(run_ids))
        for _, task in tables.tasks_of_run(run_id)
        if is_lost_for_good(task) and task.visible_at <= now
    ]


def fail_lost(tables: Tables, now: int, tasks: Sequence[TaskRow]) -> list[Notice]:
    """Fail tasks for good whose workers are lost; return the notices."""
    progress = Progress(tables, now)
    ends = [
        StepTaskEnd(
            run_id=task.run_id, key=task.key, lease_no=task.lease_no, error=_LOST, retryable=False
        )
        for task in tasks
    ]
    end_tasks(
        progress, ends, lambda task, end: (task.kind, task.lease_no) == ("step", end.lease_no)
    )
    return progress.notices
