"""Delete flows with their runs."""

from __future__ import annotations

from uuid import UUID

from holdfast.errors import FlowInUse
from holdfast.store.memory import details
from holdfast.store.memory.ends import end_from_outside
from holdfast.store.memory.flows.rows import runs_of
from holdfast.store.memory.flows.shapes import newest_shape
from holdfast.store.memory.rows import ShapeRow
from holdfast.store.memory.tables import Tables, distinct
from holdfast.types import DeletedFlow, Event, FlowShape, Notice


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
