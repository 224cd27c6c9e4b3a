"""Flows: their starts, and the results of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from holdfast.payloads.outgoing import spread
from holdfast.payloads.store.part import PayloadPart
from holdfast.types import (
    FlowStepState,
    NewRun,
    Notice,
    OpenStepTasks,
    StartedRun,
    StepTaskEnd,
    StepTasksEnded,
    Taker,
)


class PayloadFlows(PayloadPart):
    """Encodes inputs of flows and results of their steps."""

    async def start_flows(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        return await self._store.start_flows(await self.sealed_runs(runs))

    async def end_step_tasks(
        self,
        worker_id: str,
        ends: Sequence[StepTaskEnd],
        taker: Taker | None = None,
        *,
        patience: int = 1,
    ) -> StepTasksEnded:
        """Report steps of flows; see `FlowStore.end_step_tasks`. An end may be `busy` as there."""
        outgoing = self._outgoing()
        sealed = [
            self._sealed_error(
                self._sealed(outgoing, end, end.run_id, output=f"the result of step {end.key}")
            )
            for end in ends
        ]
        busy = await outgoing.missing([end.output for end in sealed])
        given = [end for end, is_busy in zip(sealed, busy, strict=True) if not is_busy]
        ended = await self._store.end_step_tasks(worker_id, given, taker, patience=patience)
        return msgspec.structs.replace(
            ended,
            outcomes=spread(ended.outcomes, busy),
            tasks=[self._open_task(each) for each in ended.tasks],
        )

    async def flow_steps(
        self, run_ids: Sequence[UUID], *, outputs: bool = True
    ) -> dict[UUID, list[FlowStepState]]:
        found = await self._store.flow_steps(run_ids, outputs=outputs)
        return {
            run_id: [self._opened(step, "output", "error") for step in steps]
            for run_id, steps in found.items()
        }

    async def open_step_tasks(self, run_id: UUID) -> list[OpenStepTasks]:
        found = await self._store.open_step_tasks(run_id)
        return [self._open_reason(self._opened(each, "error")) for each in found]
