"""The part of the port for flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import (
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


class FlowStore(Protocol):
    """Keeps the shapes of flows, starts, retries and forks their runs, and advances them."""

    @readable
    async def ensure_flow(
        self, shape: FlowShape, shape_hash: str, *, replace: bool = False
    ) -> EnsuredFlow:
        """Make the database's shape of this version that of the code, unless it has another.

        Shapes with the same hash are the same, and so are those with the same contents, also if
        one was made from SQL. With `replace`, another shape is replaced, and the runs of it that
        have not ended are terminated. Refuses shapes that cannot be (InvalidInput).
        """
        ...

    async def start_flows(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs of flows; a run that exists already is left as it is, as in `start_runs`.

        A version of 0 is the newest. Refuses unknown flows (UnknownFlow), and an input over which
        a root step cannot map (InvalidInput).
        """
        ...

    @readable
    async def run_as_flow(self, worker_id: str, run_id: UUID, lease_no: int) -> list[Notice] | None:
        """Make the run of a flow of a claimed run that was started as one of a workflow.

        Returns None if the lease is lost, or if code of the run has run. Refuses what `start_flows`
        refuses of a flow and its input.
        """
        ...

    async def end_step_tasks(
        self,
        worker_id: str,
        ends: Sequence[StepTaskEnd],
        taker: Taker | None = None,
        *,
        patience: int = 1,
    ) -> StepTasksEnded:
        """Record how attempts at steps' tasks ended, and advance their runs.

        The lease's number fences each end. Repeating a call is harmless: what was recorded before
        is reported as `lost`. Tasks that become ready by it are leased to the caller at once, as
        far as it takes them. `patience` multiplies the time that the answer may take: a map may
        begin with very many tasks.
        """
        ...

    @readable
    async def delete_flow(
        self, name: str, *, terminate: bool = False, force: bool = False, before: int | None = None
    ) -> DeletedFlow:
        """Delete all versions of a flow with their runs, or some of the runs: then it is not done.

        `before` is what the call before has answered. Raises FlowInUse while runs of it have not
        ended, unless they are to be terminated; and, unless it is forced, while a step of another
        flow runs it (of the newest version, or of one with open runs), or a schedule does.
        """
        ...

    @readable
    async def retry_flow(
        self, run_id: UUID, new_run_id: UUID, *, from_step: str | None = None
    ) -> tuple[FlowRetry, list[Notice]]:
        """Start a new run of what an ended run lacks: completed and skipped steps are copied.

        Elements of maps that have results keep them. `from_step` and all steps after it run again;
        an empty one stands for all that failed without failing the run: steps that were skipped
        after their last attempt, and elements whose failure their map tolerated. A run that
        completed lacks nothing: without `from_step`, or with an empty one if nothing failed, it is
        `running`, as one that has not ended. The new run has the values of the other as a fork has
        them. Its id is the caller's (`retry_run_id`): two retries with one id make one run, and the
        second is `exists`. Refuses runs of workflows, and an input over which a replaced shape
        cannot map (InvalidInput).
        """
        ...

    async def fork_flow(self, fork: FlowFork) -> tuple[FlowForking, list[Notice]]:
        """Start a new run that begins with what another has completed and skipped.

        Steps of `results` are completed with these outputs, whatever the other run has of them, and
        all steps after them run again; so do `from_step` and all after it. With an `input` all
        steps run again but those of `results`. A step whose result is given ends when all that
        it depends on has ended. The other run may be open, and is not changed.

        `exists`: the new id is taken (a repeated call); `missing`: there is no such run;
        `unknown_key`: the flow has no step of a name. Refuses runs of workflows, the result of a
        map that is not an array, and an input over which the flow cannot map (InvalidInput).
        """
        ...

    @readable
    async def list_flows(self) -> list[FlowInfo]:
        """Return every version of every flow, by name and version."""
        ...

    @readable
    async def get_flow(self, name: str, version: int | None = None) -> FlowShape | None:
        """Return a version of a flow, by default the newest; None if there is none."""
        ...

    @readable
    async def shape_of_run(
        self, run_id: UUID, name: str, version: int, created_at: int
    ) -> FlowShape | None:
        """Return the shape that a run of a version of a flow has, or had when it ended.

        Another one may have replaced it since. None if there is none.
        """
        ...

    async def flow_steps(
        self, run_ids: Sequence[UUID], *, outputs: bool = True
    ) -> dict[UUID, list[FlowStepState]]:
        """Return the steps of runs, in the order of their shapes, for runs of flows.

        Without `outputs` these are None: a map's is put together of all its elements.
        """
        ...

    async def open_step_tasks(self, run_id: UUID) -> list[OpenStepTasks]:
        """Return what the steps of a run wait for, or who works on them, in the order of its shape.

        The run of a workflow has none.
        """
        ...
