"""Retries of runs of flows: new runs that begin with what others have."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from uuid import UUID

import msgspec

from holdfast.errors import InvalidInput
from holdfast.store.memory import details
from holdfast.store.memory.children import successor
from holdfast.store.memory.flows.cascade import advance
from holdfast.store.memory.flows.progress import Progress
from holdfast.store.memory.flows.rows import Place, known_step, step_row
from holdfast.store.memory.flows.starts import check_input, insert_flow
from holdfast.store.memory.tables import END, RunRow, ShapeRow, StepRow, Tables
from holdfast.types import Event, FlowRetry, Notice


def retry_flow(
    tables: Tables, now: int, run_id: UUID, new_run_id: UUID, from_step: str | None
) -> tuple[FlowRetry, list[Notice]]:
    """Start a new run that does what an ended run lacks; `from_step` and all after it run again.

    What a run has whose shape was replaced since is not used.
    """
    origin = tables.runs.get(run_id)
    if origin is not None and not origin.is_flow:
        raise InvalidInput(f"run {run_id} is not one of a flow: retry it with fork_run")
    if new_run_id in tables.runs:
        return "exists", []
    shape = None if origin is None else tables.shapes.get(origin.handler)
    if origin is None or shape is None:
        return "missing", []
    if origin.status == "running" or (origin.status == "completed" and from_step is None):
        return "running", []
    if from_step is not None and from_step not in shape.steps:
        return "unknown_step", []
    check_input(shape, origin.new)  # the shape may have been replaced
    again = _steps_again(tables, origin, shape, from_step)
    _start(tables, now, origin, new_run_id)
    if not _is_replaced(origin, shape):
        _copy(tables, run_id, new_run_id, shape, again, from_step)
    return "started", _resume(tables, now, new_run_id, shape, again)


def _is_replaced(origin: RunRow, shape: ShapeRow) -> bool:
    return shape.created_at > origin.created_at


def _steps_again(
    tables: Tables, origin: RunRow, shape: ShapeRow, from_step: str | None
) -> set[str]:
    """Return the steps that run again: those that have not ended well, and all after them.

    Those after a step that stays skipped with all that depends on it are not among them.
    """
    if _is_replaced(origin, shape):
        return set(shape.steps)
    found = {slug: _known(tables, origin.new.run_id, slug) for slug in shape.steps}
    first = {slug for slug, step in found.items() if step.status not in ("completed", "skipped")}
    again = _with_dependents(shape, first if from_step is None else first | {from_step})
    cascading = {
        slug for slug, step in found.items() if slug not in again and _cascades(shape, slug, step)
    }
    return again - _with_dependents(shape, cascading) - {END}


def _known(tables: Tables, run_id: UUID, slug: str) -> StepRow:
    return known_step(tables, (run_id, slug)) or StepRow()


def _cascades(shape: ShapeRow, slug: str, step: StepRow) -> bool:
    """Return True if a step was skipped with all that depends on it."""
    options = shape.steps[slug]
    match step.skip_reason:
        case "condition_unmet":
            return options.when_unmet == "skip-cascade"
        case "handler_failed":
            return options.when_exhausted == "skip-cascade"
        case _:
            return False


def _with_dependents(shape: ShapeRow, slugs: Iterable[str]) -> set[str]:
    """Return steps with all that depend on them, the end among these."""
    found: set[str] = set()
    todo = list(slugs)
    while todo:
        slug = todo.pop()
        if slug not in found:
            found.add(slug)
            todo += [] if slug == END else shape.dependents[slug]
    return found


def _start(tables: Tables, now: int, origin: RunRow, run_id: UUID) -> None:
    """Write the run, with the properties of the other one, and where it comes from."""
    insert_flow(tables, now, msgspec.structs.replace(successor(origin), run_id=run_id))
    first = str(origin.new.run_id)
    told = details.write(run_id=first, idx=len(tables.logs[origin.new.run_id]), seed=first)
    tables.append(run_id, Event("WorkflowForked", None, told, now))


def _copy(
    tables: Tables,
    run_id: UUID,
    new_run_id: UUID,
    shape: ShapeRow,
    again: Collection[str],
    from_step: str | None,
) -> None:
    """Copy the steps that do not run again, and the results of elements of maps.

    A map that runs again keeps its results, unless it was asked for, or what it maps over runs
    again.
    """
    for slug in shape.steps:
        step = known_step(tables, (run_id, slug))
        if step is not None and slug not in again:
            tables.steps[new_run_id][slug] = replace(step)
        results = tables.elements.get((run_id, slug))
        if results and slug != from_step and not set(shape.deps(slug)) & set(again):
            tables.elements[new_run_id, slug] = dict(results)


def _resume(
    tables: Tables, now: int, run_id: UUID, shape: ShapeRow, again: Collection[str]
) -> list[Notice]:
    """Count for each step that has not ended which of its dependencies have, and advance."""
    open_steps = _with_dependents(shape, again)
    ready: list[Place] = []
    for slug in open_steps | {END}:
        deps = shape.deps(slug)
        done = sum(dep not in open_steps for dep in deps)
        if len(deps) > 1:
            step_row(tables, (run_id, slug)).deps_done = done
        if done == len(deps) and (slug in again or slug == END):
            ready.append((run_id, slug))
    progress = Progress(tables, now)
    advance(progress, ready=ready)
    return progress.notices
