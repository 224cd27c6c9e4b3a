"""The part of the store for flows, and how they are deleted with their runs."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.errors import FlowInUse
from holdfast.store.memory import details
from holdfast.store.memory.database import Part
from holdfast.store.memory.ends import end_from_outside
from holdfast.store.memory.flows.ends import end_tasks
from holdfast.store.memory.flows.inputs import known_key, task_input
from holdfast.store.memory.flows.progress import Progress
from holdfast.store.memory.flows.retries import fork_flow, retry_flow
from holdfast.store.memory.flows.rows import runs_of
from holdfast.store.memory.flows.shapes import ensure_shape, find_shape, list_shapes, newest_shape
from holdfast.store.memory.flows.starts import run_as_flow, start_flows
from holdfast.store.memory.flows.states import open_tasks, steps_of
from holdfast.store.memory.payloads import check_json
from holdfast.store.memory.rows import ShapeRow, TaskRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.types import (
    ClaimedTask,
    DeletedFlow,
    EnsuredFlow,
    Event,
    FlowFork,
    FlowForking,
    FlowInfo,
    FlowRetry,
    FlowShape,
    FlowStepState,
    NewRun,
    Notice,
    OpenStepTasks,
    StartedRun,
    StepTaskEnd,
    StepTasksEnded,
    Taker,
)
from holdfast.values.composing import compose


class MemoryFlows(Part):
    async def ensure_flow(
        self, shape: FlowShape, shape_hash: str, *, replace: bool = False
    ) -> EnsuredFlow:
        async with self._transaction() as (tables, now):
            return ensure_shape(tables, now, shape, shape_hash, replace=replace)

    async def list_flows(self) -> list[FlowInfo]:
        async with self._transaction() as (tables, _):
            return list_shapes(tables)

    async def get_flow(self, name: str, version: int | None = None) -> FlowShape | None:
        async with self._transaction() as (tables, _):
            return find_shape(tables, name, version, None)

    async def shape_of_run(
        self, run_id: UUID, name: str, version: int, created_at: int
    ) -> FlowShape | None:
        async with self._transaction() as (tables, _):
            return find_shape(tables, name, version, created_at)

    async def delete_flow(
        self, name: str, *, terminate: bool = False, force: bool = False, before: int | None = None
    ) -> DeletedFlow:
        async with self._transaction() as (tables, now):
            return delete_flow(tables, now, name, terminate=terminate, force=force)

    async def retry_flow(
        self, run_id: UUID, new_run_id: UUID, *, from_step: str | None = None
    ) -> tuple[FlowRetry, list[Notice]]:
        async with self._transaction() as (tables, now):
            outcome, notices = retry_flow(tables, now, run_id, new_run_id, from_step)
            return outcome, distinct(notices)

    async def fork_flow(self, fork: FlowFork) -> tuple[FlowForking, list[Notice]]:
        async with self._transaction() as (tables, now):
            outcome, notices = fork_flow(tables, now, fork)
            return outcome, distinct(notices)

    async def start_flows(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        async with self._transaction() as (tables, now):
            answers, notices = start_flows(tables, now, runs)
            return answers, distinct(notices)

    async def run_as_flow(self, worker_id: str, run_id: UUID, lease_no: int) -> list[Notice] | None:
        async with self._transaction() as (tables, now):
            notices = run_as_flow(tables, now, worker_id, run_id, lease_no)
            return None if notices is None else distinct(notices)

    async def end_step_tasks(
        self,
        worker_id: str,
        ends: Sequence[StepTaskEnd],
        taker: Taker | None = None,
        *,
        patience: int = 1,
    ) -> StepTasksEnded:
        async with self._transaction() as (tables, now):
            for end in ends:
                for text in (end.output, end.error):
                    if text is not None:
                        check_json("end", text)
            progress = Progress(tables, now, worker_id, taker)
            outcomes = end_tasks(
                progress,
                ends,
                lambda task, end: (
                    (task.kind, task.worker, task.lease_no) == ("step", worker_id, end.lease_no)
                ),
            )
            tasks = [_handed(tables, now, task) for task in progress.handed]
            return StepTasksEnded(now, outcomes, distinct(progress.notices), tasks)

    async def flow_steps(
        self, run_ids: Sequence[UUID], *, outputs: bool = True
    ) -> dict[UUID, list[FlowStepState]]:
        async with self._transaction() as (tables, now):
            flows = sorted(run_id for run_id in run_ids if _is_flow(tables, run_id))
            return {run_id: steps_of(tables, now, run_id, outputs=outputs) for run_id in flows}

    async def open_step_tasks(self, run_id: UUID) -> list[OpenStepTasks]:
        async with self._transaction() as (tables, now):
            return open_tasks(tables, run_id, now) if _is_flow(tables, run_id) else []


def _is_flow(tables: Tables, run_id: UUID) -> bool:
    return run_id in tables.runs and tables.runs[run_id].is_flow


def _handed(tables: Tables, now: int, task: TaskRow) -> ClaimedTask:
    """Return a task that was leased to the caller as soon as it was ready."""
    run = tables.runs[task.run_id]
    return compose(
        ClaimedTask,
        task,
        log_length=0,
        started_at=now,
        input=None,
        payload=task_input(tables, task),
        run_key=known_key(tables, run),
        headers=run.new.headers,
    )


def delete_flow(
    tables: Tables, now: int, name: str, *, terminate: bool, force: bool
) -> DeletedFlow:
    """Delete all versions of a flow with their runs, in one call."""
    newest = newest_shape(tables, name)
    if newest is None:
        return DeletedFlow(runs=None, name=name)
    if not force:
        _check_unused(tables, newest.shape.name)
    running = _running(tables, newest)
    if running and not terminate:
        raise FlowInUse(
            f"runs of flow {newest.shape.name} that have not ended: {len(running)}. "
            "End them first, or have them terminated"
        )
    event = Event("WorkflowTerminated", None, details.write(reason="its flow is deleted"), now)
    notices: list[Notice] = []
    while running:  # other flows, of which these runs are steps, may start more of them
        notices += end_from_outside(tables, running, "terminated", event)[1]
        running = _running(tables, newest)
    run_ids = runs_of(tables, newest.shape.name)
    tables.delete(run_ids)
    for handler, row in list(tables.shapes.items()):
        if row.shape.name == newest.shape.name:
            del tables.shapes[handler]
    return DeletedFlow(runs=len(run_ids), name=newest.shape.name, notices=distinct(notices))


def _running(tables: Tables, row: ShapeRow) -> list[UUID]:
    return [run_id for run_id in runs_of(tables, row.shape.name) if tables.is_running(run_id)]


def _check_unused(tables: Tables, name: str) -> None:
    """Raise FlowInUse for a flow that steps of other flows or schedules run."""
    users = [
        f"step {step.slug} of flow {handler}"
        for handler, row in sorted(tables.shapes.items())
        if row.shape.name != name and _counts(tables, row.shape)
        for step in sorted(row.shape.steps, key=lambda each: each.slug)
        if step.runs_kind == "flow" and (step.runs or "").partition("@")[0] == name
    ]
    users += [
        f"schedule {schedule}"
        for schedule, each in sorted(tables.schedules.items())
        if (each.new.target.kind, each.new.target.name) == ("flow", name)
    ]
    if users:
        more = f" and {len(users) - 5} more" if len(users) > 5 else ""
        raise FlowInUse(
            f"flow {name} is still run by {', '.join(users[:5])}{more}. Change or delete what runs "
            "it first, or force the deletion: what runs it fails then"
        )


def _counts(tables: Tables, shape: FlowShape) -> bool:
    """Return True for the newest version of a flow, and for one that has open runs."""
    newest = newest_shape(tables, shape.name)
    return (newest is not None and newest.shape.version == shape.version) or any(
        tables.runs[run_id].new.version == shape.version and tables.is_running(run_id)
        for run_id in runs_of(tables, shape.name)
    )
