"""Judge steps that are ready, and runs whose steps have ended: what begins, and what fails."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from itertools import groupby
from typing import Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from holdfast.codec import contains
from holdfast.events import CANCEL_REQUESTED
from holdfast.store.memory import details
from holdfast.store.memory.flows.inputs import step_input
from holdfast.store.memory.flows.progress import StepEnd
from holdfast.store.memory.flows.rows import Place, known_step, shape_of
from holdfast.store.memory.rows import END
from holdfast.store.memory.tables import Tables
from holdfast.types import StepShape

Verdict: TypeAlias = Literal["single", "map", "end", "unmet", "fail", "no array"]

_NO_ARRAY: Final = "holdfast.errors.FlowTypeViolation"
_UNMET: Final = "holdfast.errors.StepFailed"
_WRONG: Final[tuple[Verdict, ...]] = ("no array", "fail")


class MapSize(NamedTuple):
    """The elements that a map will have; None if it would map over `json_type`, not an array."""

    elements: int | None
    json_type: str = "array"


class Wrong(NamedTuple):
    """The step because of which a run fails, and the error, as JSON text."""

    place: Place
    error: str


class Judgment(msgspec.Struct):
    """What becomes of steps that were ready; of runs that fail, only the step in `wrong`.

    Where a failure does not end the run, such steps are among `unmet`, with their `errors`. `maps`
    have their numbers of elements, `empty` are those without any, `done` the runs that are
    complete, `unmet` the steps whose conditions do not hold.
    """

    singles: list[Place] = []
    maps: list[tuple[Place, int]] = []
    empty: list[Place] = []
    done: list[UUID] = []
    unmet: list[StepEnd] = []
    errors: dict[Place, str] = {}
    wrong: list[Wrong] = []


def judge(tables: Tables, ready: Iterable[Place], failed: Collection[UUID]) -> Judgment:
    """Judge the steps that are ready, in the order of their runs and shapes."""
    places = sorted(
        (place for place in ready if place[0] not in failed),
        key=lambda place: (place[0], _index(tables, place)),
    )
    judgment = Judgment()
    for _, of_run in groupby(places, key=lambda place: place[0]):
        verdicts: dict[Place, Verdict] = {place: _verdict(tables, place) for place in of_run}
        wrong = _wrong(tables, verdicts)
        if wrong is not None:
            judgment.wrong.append(wrong)
            continue
        for place in verdicts:
            _sort_in(tables, judgment, place, verdicts[place])
    return judgment


def _sort_in(tables: Tables, judgment: Judgment, place: Place, verdict: Verdict) -> None:
    run_id, slug = place
    if verdict == "single":
        judgment.singles.append(place)
    elif verdict == "map":
        elements = map_size(tables, place).elements
        if elements:
            judgment.maps.append((place, elements))
        else:
            judgment.empty.append(place)
    elif verdict == "end":
        judgment.done.append(run_id)
    elif verdict in _WRONG:
        judgment.unmet.append(StepEnd(place, cascades=True, failed=True))
        judgment.errors[place] = _error(tables, place, slug, verdict)
    else:
        step = shape_of(tables, run_id).steps[slug]
        judgment.unmet.append(StepEnd(place, step.when_unmet == "skip-cascade"))


def _index(tables: Tables, place: Place) -> int:
    run_id, slug = place
    return -1 if slug == END else list(shape_of(tables, run_id).steps).index(slug)


def _verdict(tables: Tables, place: Place) -> Verdict:
    """Decide about a step. That a map needs an array comes before its conditions."""
    run_id, slug = place
    if slug == END:
        return "end"
    step = shape_of(tables, run_id).steps[slug]
    if step.kind == "map" and map_size(tables, place).elements is None:
        return "no array"
    if _is_met(tables, place, step):
        return step.kind
    return "fail" if step.when_unmet == "fail" else "unmet"


def _is_met(tables: Tables, place: Place, step: StepShape) -> bool:
    """Return True if a step's conditions hold. Root steps are judged by the run's input itself.

    One with the rule one_failed needs a dependency that failed, or was skipped because of one.
    """
    if step.trigger_rule == "one_failed" and not _one_failed(tables, place, step):
        return False
    if step.required is None and step.forbidden is None:
        return True
    run = tables.runs[place[0]]
    given = json.loads(step_input(tables, place, judged=True) if step.deps else run.new.input)
    required = step.required is None or contains(given, json.loads(step.required))
    forbidden = step.forbidden is not None and contains(given, json.loads(step.forbidden))
    return required and not forbidden


def _one_failed(tables: Tables, place: Place, step: StepShape) -> bool:
    deps = (known_step(tables, (place[0], dep)) for dep in step.deps)
    return any(dep is not None and dep.has_failed for dep in deps)


def map_size(tables: Tables, place: Place) -> MapSize:
    """Count the elements of a map that is ready: of the run's input, or of its dependency."""
    run_id, slug = place
    deps = shape_of(tables, run_id).deps(slug)
    if not deps:
        return _size(tables.runs[run_id].new.input)
    step = known_step(tables, (run_id, deps[0]))
    if step is None or step.status == "skipped":
        return MapSize(0)
    # The output of a map that had elements is its elements.
    return MapSize(step.initial_tasks) if step.output is None else _size(step.output)


def _size(text: str) -> MapSize:
    value = json.loads(text)
    if isinstance(value, list):
        return MapSize(len(msgspec.json.decode(text, type=list[msgspec.Raw])))
    return MapSize(None, json_type(value))


def json_type(value: object) -> str:
    """Return what JSON calls the type of a decoded value.

    >>> json_type(None), json_type(True), json_type(1.5), json_type({})
    ('null', 'boolean', 'number', 'object')
    """
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _wrong(tables: Tables, verdicts: dict[Place, Verdict]) -> Wrong | None:
    """Return the step because of which a run fails: a map over no array comes first.

    None where a step that fails does not end the run.
    """
    for verdict in _WRONG:
        for place, found in verdicts.items():
            if found == verdict and not shape_of(tables, place[0]).is_soft:
                run_id, slug = place
                if verdict == "no array":
                    [slug] = shape_of(tables, run_id).deps(slug)
                return Wrong((run_id, slug), _error(tables, place, slug, verdict))
    return None


def _error(tables: Tables, place: Place, slug: str, verdict: Verdict) -> str:
    """Return the error of the step `slug`, by the verdict about the step at a place."""
    if verdict == "fail":
        return details.write(kind=_UNMET, step=slug, message="Condition not met")
    [dep] = shape_of(tables, place[0]).deps(place[1])
    message = (
        f"[TYPE_VIOLATION] Map step {place[1]} expects array input "
        f"but dependency {dep} produced {map_size(tables, place).json_type}"
    )
    return details.write(kind=_NO_ARRAY, step=slug, message=message)


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
