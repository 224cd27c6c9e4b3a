"""How far runs of flows are: their steps, as callers see them."""

from __future__ import annotations

from uuid import UUID

from holdfast.store.memory.flows.inputs import step_output
from holdfast.store.memory.flows.rows import known_step, shape_of
from holdfast.store.memory.tables import StepRow, Tables
from holdfast.types import FlowStepState, StepShape


def steps_of(tables: Tables, run_id: UUID) -> list[FlowStepState]:
    """Return the steps of a run of a flow, in the order of its shape."""
    return [_state(tables, run_id, step) for step in shape_of(tables, run_id).shape.steps]


def _state(tables: Tables, run_id: UUID, step: StepShape) -> FlowStepState:
    """Return a step: what is stored of it, and for a single step what its task tells."""
    row = known_step(tables, (run_id, step.slug)) or StepRow()
    task = tables.tasks.get((run_id, step.slug))
    status, attempts, worker, started_at = row.status, row.attempts, row.worker, row.started_at
    if task is not None:
        if status == "created" and task.started_at is not None:
            status = "started"
        attempts = task.attempts if attempts is None else attempts
        worker = task.worker if worker is None else worker
        started_at = task.started_at if started_at is None else started_at
    return FlowStepState(
        run_id=run_id,
        step=step.slug,
        kind=step.kind,
        deps=tuple(shape_of(tables, run_id).deps(step.slug)),
        status=status,
        initial_tasks=row.initial_tasks,
        remaining_tasks=row.remaining_tasks,
        output=step_output(tables, (run_id, step.slug)),
        error=row.error,
        skip_reason=row.skip_reason,
        attempts=attempts,
        worker=worker,
        started_at=started_at,
        ended_at=row.ended_at,
    )
