"""Flows: their shapes, their starts, and the ends of their steps' tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from holdfast.store.postgres.database import Part, columns, read_headers, read_notices
from holdfast.store.postgres.rows import join_results, json_text, reader
from holdfast.store.postgres.starts import flow_runs
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

_NOBODY = Taker(0, (), (), 0.0)
_read_deleted = reader(DeletedFlow, "notices", name="flow_slug")
_read_flow = reader(FlowInfo, name="flow_slug")
_read_step = reader(FlowStepState, "deps", step="step_slug", kind="step_type")
_read_tasks = reader(OpenStepTasks, step="step_slug", index="task_index")
_DELETED_AT_ONCE: Final = 500  # runs: starts of the flow wait for no more than these


class PostgresFlows(Part):
    async def ensure_flow(
        self, shape: FlowShape, shape_hash: str, *, replace: bool = False
    ) -> EnsuredFlow:
        row = await self._database.row(
            "ensure_flow", shape.name, shape.version, shape_hash, json_text(shape), replace
        )
        return EnsuredFlow(
            row["status"], _shape(row["other"]), row["ended"], read_notices(row["notices"])
        )

    async def list_flows(self) -> list[FlowInfo]:
        return [_read_flow(row) for row in await self._database.rows("list_flows")]

    async def get_flow(self, name: str, version: int | None = None) -> FlowShape | None:
        (found,) = await self._database.row("get_flow", name, version, None)
        return _shape(found)

    async def shape_of_run(
        self, run_id: UUID, name: str, version: int, created_at: int
    ) -> FlowShape | None:
        (found,) = await self._database.row("get_flow", name, version, created_at)
        return _shape(found)

    async def delete_flow(
        self, name: str, *, terminate: bool = False, force: bool = False, before: int | None = None
    ) -> DeletedFlow:
        limit, tell = _DELETED_AT_ONCE, self._database.tell
        row = await self._database.row("delete_flow", name, terminate, limit, before, tell, force)
        return _read_deleted(row, notices=read_notices(row["notices"]))

    async def retry_flow(
        self, run_id: UUID, new_run_id: UUID, *, from_step: str | None = None
    ) -> tuple[FlowRetry, list[Notice]]:
        row = await self._database.row("retry_flow", run_id, new_run_id, from_step)
        return row["outcome"], read_notices(row["notices"])

    async def fork_flow(self, fork: FlowFork) -> tuple[FlowForking, list[Notice]]:
        row = await self._database.row(
            "fork_flow",
            fork.run_id,
            fork.new_run_id,
            fork.from_step,
            fork.input,
            join_results(fork.results),
        )
        return row["outcome"], read_notices(row["notices"])

    async def start_flows(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        found = await self._database.rows("start_flows", *flow_runs(runs), self._database.tell)
        started = [StartedRun(row["run_id"], row["created"], row["status"]) for row in found]
        return started, read_notices(found[0]["notices"] if found else None)

    async def run_as_flow(self, worker_id: str, run_id: UUID, lease_no: int) -> list[Notice] | None:
        (notices,) = await self._database.row("run_as_flow", worker_id, run_id, lease_no)
        return None if notices is None else read_notices(notices)

    async def end_step_tasks(
        self,
        worker_id: str,
        ends: Sequence[StepTaskEnd],
        taker: Taker | None = None,
        *,
        patience: int = 1,
    ) -> StepTasksEnded:
        taker = taker or _NOBODY
        first, *handed = await self._database.rows(
            "end_step_tasks",
            worker_id,
            *columns(ends, "run_id", "key", "lease_no", "output"),
            [end.error for end in ends] if any(end.error is not None for end in ends) else None,
            [end.retryable for end in ends],
            taker.room,
            taker.queues,
            taker.handlers,
            taker.lease_seconds,
            self._database.tell,
            patience=patience,
        )
        return StepTasksEnded(
            first["now"],
            first["outcomes"] or [],
            read_notices(first["notices"]),
            [_handed_task(row, first["now"]) for row in handed],
        )

    async def flow_steps(
        self, run_ids: Sequence[UUID], *, outputs: bool = True
    ) -> dict[UUID, list[FlowStepState]]:
        found: dict[UUID, list[FlowStepState]] = {}
        for row in await self._database.rows("flow_steps", run_ids, outputs):
            found.setdefault(row["run_id"], []).append(
                _read_step(row, deps=tuple(row["deps"] or ()))
            )
        return found

    async def open_step_tasks(self, run_id: UUID) -> list[OpenStepTasks]:
        return [_read_tasks(row) for row in await self._database.rows("open_step_tasks", run_id)]


def _shape(text: str | None) -> FlowShape | None:
    return None if text is None else msgspec.json.decode(text, type=FlowShape)


def _handed_task(row: asyncpg.Record, now: int) -> ClaimedTask:
    """Return the task of a row: it was leased to this worker as soon as it was ready."""
    name, _, version = row["handler"].rpartition("@")
    return ClaimedTask(
        run_id=row["run_id"],
        key=row["key"],
        kind="step",
        queue=row["queue"],
        name=name,
        version=int(version),
        attempts=row["attempts"],
        lease_no=row["lease_no"],
        log_length=0,
        started_at=now,
        input=None,
        payload=row["input"],
        run_key=row["run_key"],
        headers=read_headers(row["headers"]),
    )
