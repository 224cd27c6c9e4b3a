"""Runs that are steps of flows: started for tasks, which their ends end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args
from uuid import UUID

import msgspec

from holdfast.codec import raw
from holdfast.errors import HoldfastError, InvalidInput, UnknownFlow
from holdfast.store.memory import details
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.flows.always import cancel_flows
from holdfast.store.memory.flows.ends import end_tasks, error_line, retry_pause
from holdfast.store.memory.flows.inputs import step_output
from holdfast.store.memory.flows.progress import Progress
from holdfast.store.memory.flows.rows import known_step, place_of, shape_of, split_key, step_row
from holdfast.store.memory.flows.starts import begin_flows, with_shape
from holdfast.store.memory.large_payloads import use_payloads
from holdfast.store.memory.rows import Parent, TaskRow
from holdfast.store.memory.start_rules import lock_order
from holdfast.store.memory.starts import start_free
from holdfast.store.memory.tables import Tables
from holdfast.store.port import WORK_TOPIC, refusal
from holdfast.types import NewRun, Notice, RunKind, Status, StepShape, StepTaskEnd
from holdfast.values.ids import step_run_id

_RETRYABLE: Final[frozenset[Status]] = frozenset({"completed", "failed", "timed_out"})


class FlowNesting:
    """Connects runs of flows with the runs that are their steps."""

    def tell(self, tables: Tables, now: int, run_id: UUID, ended: list[UUID]) -> list[Notice]:
        """End the tasks for which runs stood.

        One that failed or took too long is tried again, as the step's options say. One that was
        cancelled or terminated is not.
        """
        ends = [_end(tables, run_id, child_id) for child_id in ended]
        again = [end for end in ends if end.retryable]
        final = [end for end in ends if not end.retryable]
        return _end_tasks(tables, now, again) + _end_tasks(tables, now, final)

    def cancel(self, tables: Tables, now: int, run_ids: list[UUID]) -> list[Notice]:
        """Stop all steps of runs but those that always run at the end; see `cancel_flows`."""
        return cancel_flows(tables, now, run_ids)

    def start(self, tables: Tables, now: int, tasks: list[tuple[UUID, str]]) -> list[Notice]:
        """Start a run for each task that is still there, and not paused, nor its flow.

        The order is that of the flows' runs, of their steps and of the elements; where rules have
        keys, `lock_order` comes before. A task fails for good if its flow does not exist or refuses
        the input, or if a rule refuses the start. This may end the flow's run: runs of flows are
        started for the tasks that are left when those of workflows were.
        """
        rows = [
            tables.tasks[place]
            for place in tasks
            if place in tables.tasks and not _hold_if_paused(tables, tables.tasks[place])
        ]
        places = {
            (run_id, slug): number
            for run_id in {task.run_id for task in rows}
            for number, slug in enumerate(shape_of(tables, run_id).steps)
        }
        rows.sort(key=lambda t: (t.run_id, places[place_of(t)], split_key(t.key)[1] or 0))
        return [
            notice for kind in get_args(RunKind) for notice in _start_runs(tables, now, rows, kind)
        ]

    def resume(self, tables: Tables, now: int, run_ids: list[UUID]) -> list[Notice]:
        """Start the runs of steps that became ready while the flow, or its run, was paused."""
        tasks = [
            task
            for run_id in run_ids
            for _, task in tables.tasks_of_run(run_id)
            if task.kind == "child" and not task.paused and _lacks_its_run(tables, task)
        ]
        for task in tasks:
            task.started_at = task.started_at or now
        return self.start(tables, now, [(task.run_id, task.key) for task in tasks])


def _start_runs(tables: Tables, now: int, tasks: Sequence[TaskRow], kind: RunKind) -> list[Notice]:
    """Start the runs of workflows, or of flows, then end the tasks whose starts were refused."""
    due = [
        (task, _new_run(tables, now, task))
        for task in tasks
        if (task.run_id, task.key) in tables.tasks
        and not task.paused
        and _shape(tables, task).runs_kind == kind
    ]
    starts = due
    if kind == "workflow":
        starts = sorted(due, key=lambda each: lock_order(tables, each[1]))
    notices: list[Notice] = []
    flows: list[tuple[NewRun, Parent]] = []
    refused: dict[UUID, StepTaskEnd] = {}  # by the run that was not started
    for task, new in starts:
        if new.delay_seconds and task.attempts == 1 and split_key(task.key)[1] is None:
            task.started_at = now + to_micros(new.delay_seconds)  # a step begins with its run
        use_payloads(tables, new.run_id, [new.input])
        parent = Parent(task.run_id, task.key, "cancel")
        if kind == "workflow":
            started = start_free(tables, now, new, parent)
            if started.created:
                notices.append(Notice(WORK_TOPIC, task.queue))
            else:
                refused[new.run_id] = _refusal(task, refusal(new.name, started))
            continue
        try:
            flows.append((with_shape(tables, new), parent))
        except (UnknownFlow, InvalidInput) as error:
            refused[new.run_id] = _refusal(task, error)
    ends = [refused[new.run_id] for _, new in due if new.run_id in refused]
    return notices + begin_flows(tables, now, flows) + _end_tasks(tables, now, ends)


def _hold_if_paused(tables: Tables, task: TaskRow) -> bool:
    """Let the step of a task whose flow is paused not have begun. Return True for such a task."""
    is_held = ("workflow", task.name) in tables.pauses
    if is_held and task.attempts == 1 and split_key(task.key)[1] is None:
        task.started_at = None
    return is_held


def _lacks_its_run(tables: Tables, task: TaskRow) -> bool:
    """Return True for the task of a step that is a run, if it may begin and has no run yet."""
    row, index = known_step(tables, place_of(task)), split_key(task.key)[1]
    waits = index is not None and row is not None and index >= (row.next_task or index + 1)
    running = (
        tables.runs[child_id].parent
        for child_id in tables.children[task.run_id]
        if tables.is_running(child_id)
    )
    return (
        not waits
        and _run_id(tables, task) not in tables.runs
        and Parent(task.run_id, task.key, "cancel") not in running  # as which it continued
    )


def _end_tasks(tables: Tables, now: int, ends: list[StepTaskEnd]) -> list[Notice]:
    progress = Progress(tables, now)
    end_tasks(progress, ends, lambda task, _: task.kind == "child")
    return progress.notices


def _end(tables: Tables, run_id: UUID, child_id: UUID) -> StepTaskEnd:
    child = tables.runs[child_id]
    assert child.parent is not None
    end = StepTaskEnd(
        run_id=run_id,
        key=child.parent.key,
        lease_no=0,
        output=child.output,
        retryable=child.status in _RETRYABLE,
    )
    if child.status == "completed":
        return end
    line = error_line(child.error) if child.error else ""
    how = {"failed": f"failed: {line}", "timed_out": "took too long"}
    error = details.write(
        kind="holdfast.errors.ChildFailed",
        message=f"run {child_id} {how.get(child.status, f'was {child.status}')}",
        status=child.status,
        child_run_id=str(child_id),
        cause=raw(child.error),
    )
    return msgspec.structs.replace(end, output=None, error=error)


def _refusal(task: TaskRow, why: HoldfastError) -> StepTaskEnd:
    error = details.write(kind=f"holdfast.errors.{type(why).__name__}", message=str(why))
    return StepTaskEnd(run_id=task.run_id, key=task.key, lease_no=0, error=error, retryable=False)


def _shape(tables: Tables, task: TaskRow) -> StepShape:
    run_id, slug = place_of(task)
    return shape_of(tables, run_id).steps[slug]


def _run_id(tables: Tables, task: TaskRow) -> UUID:
    created_at = tables.runs[task.run_id].created_at
    return step_run_id(task.run_id, task.key, task.attempts, created_at)


def _new_run(tables: Tables, now: int, task: TaskRow) -> NewRun:
    """Return the run of an attempt: its id is made of the task's key and the attempt."""
    step, flow = _shape(tables, task), tables.runs[task.run_id].new
    assert step.runs is not None
    name, _, version = step.runs.rpartition("@")
    return NewRun(
        run_id=_run_id(tables, task),
        name=name,
        version=int(version),
        queue=task.queue,
        priority=task.priority,
        input=_input(tables, task),
        delay_seconds=_delay(tables, now, task) or None,
        timeout_seconds=step.timeout,
        retention_seconds=flow.retention_seconds,
        headers=flow.headers,
    )


def _input(tables: Tables, task: TaskRow) -> str:
    if task.payload is not None:
        return task.payload
    for dep in _shape(tables, task).deps:
        return step_output(tables, (task.run_id, dep)) or "null"
    return tables.runs[task.run_id].new.input


def _delay(tables: Tables, now: int, task: TaskRow) -> float:
    """Return for how many seconds the run of an attempt waits before it begins.

    The delay of an element's first run counts from when its map began.
    """
    step, flow = _shape(tables, task), shape_of(tables, task.run_id).shape
    began_at, delay = now, float(step.start_delay or 0)
    if task.attempts > 1:
        delay = retry_pause(flow, step, task.attempts - 1)
    elif split_key(task.key)[1] is not None:
        began_at = step_row(tables, place_of(task)).started_at or now
    began_at = max(began_at, tables.runs[task.run_id].due_at or 0)  # of a delayed start
    return max((began_at - now) / 1_000_000 + delay, 0.0)
