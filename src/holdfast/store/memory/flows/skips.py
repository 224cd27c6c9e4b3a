"""Skip steps, and for those that cascade all that depends on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from holdfast.codec import raw
from holdfast.store.memory import details
from holdfast.store.memory.ends import request_cancels
from holdfast.store.memory.flows.progress import Progress, StepEnd
from holdfast.store.memory.flows.rows import Place, known_step, place_of, shape_of, step_row
from holdfast.store.memory.rows import END
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
    """Skip steps for a reason; return those of them that have ended by it. Some may have failed.

    Steps after one that cascades end for those after them when all their own dependencies have
    ended. Tasks of all that is skipped are deleted, and the workers that hold one are told.
    """
    tables = progress.tables
    first = {step.place: step for step in steps}
    causes = _cascaded(tables, steps)
    ended: list[Place] = []
    for place in sorted(
        first.keys() | causes.keys(), key=lambda place: (place[0], place not in first, place)
    ):
        found, cause = known_step(tables, place), causes.get(place)
        if found is not None and found.status not in ("created", "started"):
            if found.skip_reason == "dependency_skipped" and cause is not None:
                found.skip_reason, found.error = "dependency_failed", errors[cause]
            continue
        row = step_row(tables, place)
        row.remaining_tasks, row.ended_at = None, progress.now
        row.error = errors.get(place if place in first or cause is None else cause)
        if place in first and first[place].failed:
            row.status = "failed"
            progress.log(place, "FlowStepFailed", details.write(error=raw(row.error)))
        else:
            because: SkipReason = "dependency_skipped" if cause is None else "dependency_failed"
            row.status, row.skip_reason = "skipped", reason if place in first else because
            progress.log(place, "FlowStepSkipped", details.write(reason=row.skip_reason))
        ended.append(place)
    progress.notices += delete_tasks(tables, progress.now, ended, _REASON)
    return [first[place]._replace(cascades=place in causes) for place in ended if place in first]


def _cascaded(tables: Tables, steps: Sequence[StepEnd]) -> dict[Place, Place | None]:
    """Return the steps that cascade and all after them, each with the step that failed, if one did.

    A step whose output a fork was given stays completed, and so holds the cascade up; so does one
    with another rule than none_failed, and the end of a run.
    """
    found: dict[Place, Place | None] = {}
    for step in sorted(steps, key=lambda step: not step.failed):  # a failure says more than a skip
        cause = step.place if step.failed else None
        todo = [step.place] if step.cascades else []
        while todo:
            place = todo.pop()
            row = known_step(tables, place)
            if place in found or (row is not None and row.status == "completed"):
                continue
            found[place] = cause
            run_id, slug = place
            shape = shape_of(tables, run_id)
            todo += [
                (run_id, after)
                for after in shape.dependents[slug]
                if after != END and shape.steps[after].trigger_rule == "none_failed"
            ]
    return found


def delete_tasks(tables: Tables, now: int, places: Collection[Place], reason: str) -> list[Notice]:
    """Delete the tasks of steps; tell their workers, and cancel the runs that stand for some."""
    gone = [
        task
        for run_id in sorted({run_id for run_id, _ in places})
        for _, task in tables.tasks_of_run(run_id)
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
        child_id: reason
        for task in gone
        if task.kind == "child"
        for child_id in tables.open_children(task.run_id)
        if (parent := tables.runs[child_id].parent) is not None and parent.key == task.key
    }
    return notices + request_cancels(tables, now, children)[1]
