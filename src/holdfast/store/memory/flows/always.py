"""Steps that always run at the end of a run: also of one that is cancelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from holdfast.store.memory import details
from holdfast.store.memory.ends import keep_started
from holdfast.store.memory.flows.cascade import advance
from holdfast.store.memory.flows.progress import Progress
from holdfast.store.memory.flows.rows import known_step, shape_of, step_row
from holdfast.store.memory.flows.skips import delete_tasks
from holdfast.store.memory.rows import END
from holdfast.store.memory.tables import Tables
from holdfast.types import Notice

_REASON: Final = details.write(reason="its flow was cancelled")


def cancel_flows(tables: Tables, now: int, run_ids: Iterable[UUID]) -> list[Notice]:
    """Stop all steps of runs but those that always run, and begin these, unless they have begun."""
    stopped = [run_id for run_id in run_ids if not _has_begun(tables, run_id)]
    progress = Progress(tables, now)
    for run_id in stopped:
        shape = shape_of(tables, run_id)
        keep_started(tables, now, run_id)
        places = {(run_id, slug) for slug in shape.steps}
        progress.notices += delete_tasks(tables, now, places, _REASON)
        for slug in [END, *shape.last]:
            known = len(shape.waits(slug)) - (len(shape.last) if slug == END else 0)
            step_row(tables, (run_id, slug)).deps_done = known
    ready = [(run_id, slug) for run_id in stopped for slug in shape_of(tables, run_id).last]
    advance(progress, ready=ready)
    return progress.notices


def _has_begun(tables: Tables, run_id: UUID) -> bool:
    """Return True if the steps that always run have begun: all begin at once."""
    for slug in shape_of(tables, run_id).last:
        step = known_step(tables, (run_id, slug))
        ended = step is not None and step.status != "created"
        if ended or (run_id, slug) in tables.tasks:
            return True
    return False
