"""How runs end whose steps have all ended."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from holdfast.events import CANCEL_REQUESTED
from holdfast.store.memory.flows.rows import known_step, shape_of
from holdfast.store.memory.rows import END
from holdfast.store.memory.tables import Tables


def judge_ends(tables: Tables, done: Iterable[UUID]) -> dict[UUID, str | None]:
    """Return the runs that do not complete, with their errors, None for those that are cancelled.

    A run fails with the error of the first step that failed and that no other handled.
    """
    found: dict[UUID, str | None] = {}
    for run_id in done:
        shape = shape_of(tables, run_id)
        if not shape.is_soft:
            continue
        log = tables.logs[run_id]
        if any(row.event.type == CANCEL_REQUESTED for row in log):
            found[run_id] = None
            continue
        rows = tables.steps[run_id]
        failed = [slug for slug in shape.steps if slug in rows and rows[slug].status == "failed"]
        unhandled = [slug for slug in failed if _is_unhandled(tables, run_id, slug)]
        if unhandled:
            first = min((rows[slug] for slug in unhandled), key=lambda row: row.ended_at or 0)
            found[run_id] = first.error
    return found


def _is_unhandled(tables: Tables, run_id: UUID, slug: str) -> bool:
    """Return True if a step is a last one, or leads to one through steps that it had skipped."""
    shape = shape_of(tables, run_id)
    for after in shape.dependents[slug]:
        if after == END:
            return True
        step = known_step(tables, (run_id, after))
        if (
            shape.steps[after].trigger_rule == "none_failed"
            and (step is None or step.status != "completed")
            and _is_unhandled(tables, run_id, after)
        ):
            return True
    return False
