"""Delete flows with their runs."""

from __future__ import annotations

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
    tables.delete(run_ids)
    for handler, row in list(tables.shapes.items()):
        if row.shape.name == newest.shape.name:
            del tables.shapes[handler]
    return len(run_ids)
