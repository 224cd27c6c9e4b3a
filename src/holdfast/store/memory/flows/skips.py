"""Skip steps, and for those that cascade all that depends on them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final

from holdfast.store.memory import details
from holdfast.store.memory.ends import request_cancels
from holdfast.store.memory.flows.progress import Progress, StepEnd
from holdfast.store.memory.flows.rows import Place, known_step, place_of, shape_of, step_row
from holdfast.store.memory.rows import END, RunRow
from holdfast.store.memory.tables import Tables
from holdfast.store.port import worker_topic
from holdfast.types import Notice, SkipReason

_REASON: Final = details.write(reason="its step was skipped")
_NO_ERRORS: Final[Mapping[Place, str]] = {}


def skip_steps(
    progress: Progress,
    steps: Sequence[StepEnd],
    reason: SkipReason,
    errors: Mapping[Place, str] = _NO_ERRORS,
) -> list[StepEnd]:
    """Skip steps for a reason; return those of them that have ended by it.

    Steps after one that cascades end for those after them when all their own dependencies have
    ended. Tasks of all that is skipped are deleted, and the workers that hold one are told.
    """
    tables = progress.tables
    first = {step.place for step in steps}
    cascaded = _cascaded(tables, steps)
    skipped: dict[Place, bool] = {}
    for place in sorted(first | cascaded, key=lambda place: (place[0], place not in first, place)):
        found = known_step(tables, place)
        if found is not None and found.status not in ("created", "started"):
            continue
        step = step_row(tables, place)
        step.status, step.remaining_tasks, step.ended_at = "skipped", None, progress.now
        step.skip_reason = reason if place in first else "dependency_skipped"
        step.error = errors.get(place)
        progress.log(place, "FlowStepSkipped", details.write(reason=step.skip_reason))
        skipped[place] = place in cascaded
    progress.notices += _delete_tasks(tables, progress.now, skipped)
    return [StepEnd(place, cascades) for place, cascades in skipped.items() if place in first]


def _cascaded(tables: Tables, steps: Sequence[StepEnd]) -> set[Place]:
    """Return the steps that cascade and all after them, without the ends of runs.

    A step whose output a fork was given stays completed, and so holds the cascade up.
    """
    found: set[Place] = set()
    todo = [step.place for step in steps if step.cascades]
    while todo:
        place = todo.pop()
        step = known_step(tables, place)
        if place in found or (step is not None and step.status == "completed"):
            continue
        found.add(place)
        run_id, slug = place
        after = shape_of(tables, run_id).dependents[slug]
        todo += [(run_id, dependent) for dependent in after if dependent != END]
    return found


def _delete_tasks(tables: Tables, now: int, places: Container[Place]) -> list[Notice]:
    """Delete the tasks of steps; tell their workers, and cancel the runs that stand for some."""
    gone = [
        task
        for task in tables.tasks.values()
        if task.kind in ("step", "child") and place_of(task) in places
    ]
    for task in gone:
        del tables.tasks[task.run_id, task.key]
    notices = [
        Notice(worker_topic(task.worker), f"{task.run_id} {task.key}")
        for task in gone
        if task.worker is not None
    ]
    children = {
        child_id: _REASON
        for task in gone
        if task.kind == "child"
        for child_id in tables.open_children(task.run_id)
        if _stands_for(tables.runs[child_id], task.key)
    }
    return notices + request_cancels(tables, now, children)[1]


def _stands_for(run: RunRow, key: str) -> bool:
    return run.parent is not None and run.parent.key == key
