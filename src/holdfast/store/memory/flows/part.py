"""The part of the store for flows."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from holdfast.store.memory.database import Part
from holdfast.store.memory.flows.deletes import delete_flow
from holdfast.store.memory.flows.ends import end_tasks
from holdfast.store.memory.flows.inputs import known_key, task_input
from holdfast.store.memory.flows.progress import Progress
from holdfast.store.memory.flows.retries import fork_flow, retry_flow
from holdfast.store.memory.flows.shapes import ensure_shape, find_shape, list_shapes
from holdfast.store.memory.flows.starts import run_as_flow, start_flows
from holdfast.store.memory.flows.states import open_tasks, steps_of
from holdfast.store.memory.payloads import check_json
from holdfast.store.memory.rows import TaskRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.types import (
    ClaimedTask,
    DeletedFlow,
    EnsuredFlow,
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
