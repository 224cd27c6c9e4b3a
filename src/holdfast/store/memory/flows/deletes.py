"""Delete flows with their runs."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from holdfast.errors import FlowInUse
from holdfast.store.memory import details
from holdfast.store.memory.ends import end_from_outside
from holdfast.store.memory.flows.rows import runs_of
from holdfast.store.memory.flows.shapes import newest_shape
from holdfast.store.memory.tables import Tables
from holdfast.types import Event


def delete_flow(tables: Tables, now: int, name: str, *, terminate: bool) -> int | None:
    """Delete all versions of a flow with their runs, and return how many runs that were."""
    newest = newest_shape(tables, name)
    if newest is None:
        return None
    run_ids = runs_of(tables, newest.shape.name)
    running = [run_id for run_id in run_ids if tables.is_running(run_id)]
    if running and not terminate:
        raise FlowInUse(
            f"runs of flow {newest.shape.name} that have not ended: {len(running)}. "
            "End them first, or have them terminated"
        )
    event = Event("WorkflowTerminated", None, details.write(reason="its flow is deleted"), now)
    end_from_outside(tables, running, "terminated", event)
    _delete_runs(tables, run_ids)
    for handler, row in list(tables.shapes.items()):
        if row.shape.name == newest.shape.name:
            del tables.shapes[handler]
    return len(run_ids)


def _delete_runs(tables: Tables, run_ids: Collection[UUID]) -> None:
    """Delete what there is of runs that have ended."""
    for run_id in run_ids:
        del tables.runs[run_id], tables.logs[run_id]
        tables.steps.pop(run_id, None)
        tables.waiters.pop(run_id, None)
    gone = set(run_ids)
    for place in [place for place in tables.elements if place[0] in gone]:
        del tables.elements[place]
