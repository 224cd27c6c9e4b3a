"""What steps are given, and what runs of flows return: text put together from JSON texts.

None of them is parsed: `1e300` stays `1e300`.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from holdfast.events import FORKED, read_forked
from holdfast.store.memory.flows.rows import Place, known_step, shape_of
from holdfast.store.memory.rows import END, RunRow, TaskRow
from holdfast.store.memory.tables import Tables


def known_key(tables: Tables, run: RunRow) -> str | None:
    """Return the key that the code of a run sees at its start, or that the steps of a flow see.

    The run of a flow that retries another has no key in its row, and its log that of the first.
    """
    log = tables.logs[run.new.run_id][1:2] if run.is_flow and run.new.key is None else []
    if log and log[0].event.type == FORKED:
        return read_forked(log[0].event.details or "").run_key
    return run.new.key


def step_output(tables: Tables, place: Place) -> str | None:
    """Return the output of a completed step; a map's is gathered from its elements."""
    step = known_step(tables, place)
    if step is None or step.status != "completed":
        return None
    if step.output is not None:
        return step.output
    return f"[{','.join(text for _, text in sorted(tables.elements[place].items()))}]"


def step_input(tables: Tables, place: Place, *, judged: bool = False) -> str:
    """Return what a step is given, as `{"run": …, dependency: its output, …}`.

    Dependencies that were skipped are absent; the errors of those that failed, or were skipped
    because another failed, are in `{"$failed": {dependency: …}}`, those of a map's elements by
    index. `run` is only for steps that want it, unless a condition is judged, which may be about
    it. What the end is given is the run's output.
    """
    run_id, slug = place
    shape = shape_of(tables, run_id)
    given: dict[str, str | None] = {}
    if slug != END and (judged or shape.steps[slug].wants_run):
        given["run"] = tables.runs[run_id].new.input
    for dep in shape.deps(slug):
        given[dep] = step_output(tables, (run_id, dep))
    failed = {dep: _failure(tables, (run_id, dep)) for dep in shape.deps(slug) if slug != END}
    if any(failed.values()):
        given["$failed"] = _object(failed)
    return _object(given)


def _failure(tables: Tables, place: Place) -> str | None:
    """Return the error of a step that failed, of a map that completed those of its elements."""
    step = known_step(tables, place)
    if step is not None and step.status == "completed" and step.failed_tasks:
        return _object({str(index): text for index, text in sorted(tables.failed[place].items())})
    return step.error if step is not None and step.has_failed else None


def _object(fields: Mapping[str, str | None]) -> str:
    """Return JSON texts as an object, without those that are None."""
    parts = (f'"{name}":{text}' for name, text in fields.items() if text is not None)
    return f"{{{','.join(parts)}}}"


def task_input(tables: Tables, task: TaskRow) -> str:
    """Return what the task of a step is given: the element of a map, or the step's input."""
    return step_input(tables, (task.run_id, task.key)) if task.payload is None else task.payload


def run_output(tables: Tables, run_id: UUID) -> str:
    """Return the outputs of the leaves, by name."""
    return step_input(tables, (run_id, END))
