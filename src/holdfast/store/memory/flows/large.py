"""Results that are too large together: those of a map, and all that one step is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from holdfast.store.memory import details
from holdfast.store.memory.flows.progress import Entry, Progress, StepEnd
from holdfast.store.memory.flows.rows import Place, known_step, shape_of, step_row
from holdfast.store.memory.flows.skips import skip_steps
from holdfast.store.memory.rows import END, ShapeRow
from holdfast.store.memory.tables import Tables

LARGEST_BYTES: Final = 1 << 28
_HINT: Final = "one value takes 256 MiB at most: store {} elsewhere, and return references"


def end_large_maps(progress: Progress, ends: Iterable[StepEnd]) -> list[StepEnd]:
    """Fail maps that have completed if their results are too large for a step; return all ends.

    A map over them takes them one by one, so it may be given any number of them.
    """
    tables, found = progress.tables, list[StepEnd]()
    for end in ends:
        run_id, slug = end.place
        shape, row = shape_of(tables, run_id), step_row(tables, end.place)
        is_value = any(not _is_map(shape, after) for after in shape.dependents[slug])
        size = _size(tables, end.place) if is_value and _is_map(shape, slug) else 0
        if row.status != "completed" or size <= LARGEST_BYTES:
            found.append(end)
            continue
        count = len(tables.elements.pop(end.place))
        tables.failed.pop(end.place, None)
        if run_id not in progress.failures:
            said = f"the results of its {count} elements take {size >> 20} MiB"
            found += _end(progress, end.place, f"{said}; {_HINT.format('them')}")
    return found


def end_overfull(
    progress: Progress, singles: Sequence[Place], done: Sequence[UUID]
) -> tuple[list[Place], list[UUID], list[StepEnd]]:
    """Return the steps that may begin and the runs that may complete, and the ends of others.

    Those would be given too much. What depends on one map is judged with it.
    """
    fit: list[Place] = []
    ends: list[StepEnd] = []
    for place in [*singles, *((run_id, END) for run_id in done)]:
        run_id, slug = place
        deps = shape_of(progress.tables, run_id).deps(slug)
        size = sum(_size(progress.tables, (run_id, dep)) for dep in deps) if len(deps) > 1 else 0
        hint = f"takes {(size >> 20) + 1} MiB; {_HINT.format('results')}"
        if size <= LARGEST_BYTES:
            fit.append(place)
        elif run_id in progress.failures:
            continue
        elif slug == END:
            kind, said = "holdfast.errors.PayloadError", f"the output of the run {hint}"
            progress.failures[run_id] = details.write(kind=kind, message=said)
        else:
            ends += _end(progress, place, f"what it is given {hint}")
    return (
        [place for place in fit if place[1] != END],
        [run_id for run_id, slug in fit if slug == END],
        ends,
    )


def _is_map(shape: ShapeRow, slug: str) -> bool:
    return slug != END and shape.steps[slug].kind == "map"


def _size(tables: Tables, place: Place) -> int:
    """Return how many bytes the output of a step takes."""
    row = known_step(tables, place)
    if row is None or row.status != "completed":
        return 0
    texts = tables.elements.get(place, {}).values() if row.output is None else [row.output]
    return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def _end(progress: Progress, place: Place, why: str) -> list[StepEnd]:
    """End a step with an error; on_exhausted decides."""
    run_id, slug = place
    shape, row = shape_of(progress.tables, run_id), step_row(progress.tables, place)
    exhausted = shape.steps[slug].when_exhausted
    error = details.write(
        kind="holdfast.errors.StepFailed", step=slug, message=f"step {slug} failed: {why}"
    )
    if exhausted == "fail" and not shape.is_soft:
        progress.fail(place, error)
        return []
    if row.status == "completed":
        row.status, row.ended_at = "started", None
        completed = Entry(run_id, "FlowStepCompleted", slug)
        progress.entries = [entry for entry in progress.entries if entry != completed]
    end = StepEnd(place, exhausted != "skip", failed=exhausted == "fail")
    return skip_steps(progress, [end], "handler_failed", {place: error})
