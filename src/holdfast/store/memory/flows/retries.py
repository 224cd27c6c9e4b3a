"""Retries and forks of runs of flows: new runs that begin with what others have."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.errors import InvalidInput
from holdfast.store.memory import details
from holdfast.store.memory.children import successor
from holdfast.store.memory.flows.cascade import advance
from holdfast.store.memory.flows.inputs import known_key
from holdfast.store.memory.flows.judging import json_type
from holdfast.store.memory.flows.progress import Progress
from holdfast.store.memory.flows.rows import Place, known_step, step_row
from holdfast.store.memory.flows.starts import check_input, insert_flow
from holdfast.store.memory.large_payloads import share_payloads
from holdfast.store.memory.payloads import check_json
from holdfast.store.memory.rows import END, RunRow, ShapeRow, StepRow
from holdfast.store.memory.tables import Tables
from holdfast.types import Event, FlowFork, FlowForking, FlowRetry, NewRun, Notice
from holdfast.values.texts import check_text

_FAILED: Final = ""  # in place of a step: all that failed without failing the run


def retry_flow(
    tables: Tables, now: int, run_id: UUID, new_run_id: UUID, from_step: str | None
) -> tuple[FlowRetry, list[Notice]]:
    """Start a new run that does what an ended run lacks; see `FlowStore.retry_flow`.

    What a run of a flow whose shape was replaced since has, is not used.
    """
    origin, shape = _find(tables, run_id, "retry it with fork_run")
    if new_run_id in tables.runs:
        return "exists", []
    if origin is None or shape is None:
        return "missing", []
    steps = tables.steps.get(run_id, {}).values()
    if origin.status == "running" or (
        origin.status == "completed"
        and (from_step is None or (from_step == _FAILED and not any(map(_has_failures, steps))))
    ):
        return "running", []
    if from_step is not None and from_step not in {_FAILED, *shape.steps}:
        return "unknown_step", []
    fork = FlowFork(run_id=run_id, new_run_id=new_run_id, from_step=from_step)
    return "started", _continue(tables, now, origin, shape, fork)


def fork_flow(tables: Tables, now: int, fork: FlowFork) -> tuple[FlowForking, list[Notice]]:
    """Start a new run that begins with what another has; see `FlowStore.fork_flow`."""
    _check(fork)
    origin, shape = _find(tables, fork.run_id, "fork it with fork_run")
    if fork.new_run_id in tables.runs:
        return "exists", []
    if origin is None or shape is None:
        return "missing", []
    named = fork.results.keys() | ({fork.from_step} - {None})
    if not named <= shape.steps.keys():
        return "unknown_key", []
    _check_results(shape, fork)
    return "forked", _continue(tables, now, origin, shape, fork)


def _find(tables: Tables, run_id: UUID, way_out: str) -> tuple[RunRow | None, ShapeRow | None]:
    """Return a run and its shape, as far as they exist. Raises InvalidInput for a workflow's."""
    origin = tables.runs.get(run_id)
    if origin is not None and not origin.is_flow:
        raise InvalidInput(f"run {run_id} is not one of a flow: {way_out}")
    return origin, None if origin is None else tables.shapes.get(origin.handler)


def _check(fork: FlowFork) -> None:
    """Raise InvalidInput if a fork has a value that is not allowed."""
    if fork.input is not None:
        check_json("input", fork.input)
    for slug, text in fork.results.items():
        check_text("step", slug)
        check_json("result", text)


def _check_results(shape: ShapeRow, fork: FlowFork) -> None:
    """Raise InvalidInput if the result of a map is not an array."""
    for slug, text in sorted(fork.results.items()):
        found = json_type(json.loads(text))
        if shape.steps[slug].kind == "map" and found != "array":
            raise InvalidInput(
                f"step {slug} is a map: its result is an array of the results of its elements, "
                f"not {found}"
            )


def _continue(
    tables: Tables, now: int, origin: RunRow, shape: ShapeRow, fork: FlowFork
) -> list[Notice]:
    """Start a new run that begins with what another has, and continue it.

    With an input, nothing is kept but the results that are given. Raises InvalidInput for an input
    over which the shape cannot map.
    """
    new = msgspec.structs.replace(successor(origin), run_id=fork.new_run_id)
    if fork.input is not None:
        new = msgspec.structs.replace(new, input=fork.input)
    check_input(shape, new)  # the shape may have been replaced
    is_kept = fork.input is None and shape.of_runs_from(origin.created_at) is shape
    again = _steps_again(tables, shape, fork, is_kept=is_kept)
    _start(tables, now, origin, new)
    if is_kept:
        _copy(tables, shape, fork, again)
    for slug, result in fork.results.items():
        _give(tables, now, (fork.new_run_id, slug), shape, result)
    share_payloads(tables, fork.run_id, fork.new_run_id)
    return _resume(tables, now, fork.new_run_id, shape, again)


def _steps_again(tables: Tables, shape: ShapeRow, fork: FlowFork, *, is_kept: bool) -> set[str]:
    """Return the steps that run again: those that have not ended well, and all after them.

    And all after the steps whose results are given. Those after a step that stays skipped with
    all that depends on it are not among them, unless a given result stands between.
    """
    given = fork.results.keys()
    found = {
        slug: known_step(tables, (fork.run_id, slug)) or StepRow()
        for slug in shape.steps
        if slug not in given
    }
    first = {
        slug
        for slug, step in found.items()
        if not is_kept
        or slug == fork.from_step
        or (fork.from_step == _FAILED and _has_failures(step))
        or step.status not in ("completed", "skipped")
    }
    again = _with_dependents(
        shape, first | {after for slug in given for after in shape.dependents[slug]}
    )
    cascading = {
        slug for slug, step in found.items() if slug not in again and _cascades(shape, slug, step)
    }
    stops = given | {step.slug for step in shape.shape.steps if step.trigger_rule != "none_failed"}
    return again - _with_dependents(shape, cascading, without=stops) - given - {END}


def _has_failures(step: StepRow) -> bool:
    """Return True if a step or an element of it failed for good."""
    is_skipped = step.skip_reason == "handler_failed"
    return step.status == "failed" or is_skipped or bool(step.failed_tasks)


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


def _with_dependents(
    shape: ShapeRow, slugs: Iterable[str], without: Collection[str] = frozenset()
) -> set[str]:
    """Return steps with all that depend on them, the end among these.

    Steps of `without`, and those that depend on these alone, are left out.
    """
    found: set[str] = set()
    todo = list(slugs)
    while todo:
        slug = todo.pop()
        if slug not in found:
            found.add(slug)
            after = [] if slug == END else shape.dependents[slug]
            todo += [dependent for dependent in after if dependent not in without]
    return found


def _start(tables: Tables, now: int, origin: RunRow, new: NewRun) -> None:
    """Write the run, and where it comes from."""
    insert_flow(tables, now, new)
    first, key = str(origin.new.run_id), known_key(tables, origin)
    known = {} if key is None else {"run_key": key}
    told = details.write(run_id=first, idx=len(tables.logs[origin.new.run_id]), seed=first, **known)
    tables.append(new.run_id, Event("WorkflowForked", None, told, now))


def _copy(tables: Tables, shape: ShapeRow, fork: FlowFork, again: Collection[str]) -> None:
    """Copy the steps that do not run again, and the results of elements of maps.

    A map that runs again keeps its results, but not its failures, unless it was asked for, or what
    it maps over runs again or is given.
    """
    given = fork.results.keys()
    changed = given | set(again)
    for slug in shape.steps.keys() - given:
        step = known_step(tables, (fork.run_id, slug))
        if step is not None and slug not in again:
            copy = tables.steps[fork.new_run_id][slug] = replace(step)
            if copy.skip_reason == "dependency_failed":  # it stays skipped because of a skip
                copy.skip_reason, copy.error = "dependency_skipped", None
        results = tables.elements.get((fork.run_id, slug))
        repeated = slug == fork.from_step and slug in again
        if results and not repeated and not changed & set(shape.deps(slug)):
            failed = tables.failed.get((fork.run_id, slug), {})
            if slug in again:  # those that failed run again
                results = {index: text for index, text in results.items() if index not in failed}
            elif failed:
                tables.failed[fork.new_run_id, slug] = dict(failed)
            tables.elements[fork.new_run_id, slug] = dict(results)


def _give(tables: Tables, now: int, place: Place, shape: ShapeRow, result: str) -> None:
    """Complete a step with a result that was given; the elements of a map get one each."""
    step = step_row(tables, place)
    step.status, step.started_at, step.ended_at = "completed", now, now
    step.initial_tasks, step.remaining_tasks, step.output = 1, 0, result
    if shape.steps[place[1]].kind == "map":
        elements = msgspec.json.decode(result, type=list[msgspec.Raw])
        step.initial_tasks = len(elements)
        if elements:
            step.output = None
            texts = (bytes(element).decode() for element in elements)
            tables.elements[place] = dict(enumerate(texts))


def _resume(
    tables: Tables, now: int, run_id: UUID, shape: ShapeRow, again: Collection[str]
) -> list[Notice]:
    """Count for each step that has not ended which of its dependencies have, and advance."""
    open_steps = _with_dependents(shape, again)
    ready: list[Place] = []
    for slug in open_steps | {END}:
        deps = shape.waits(slug)
        done = sum(dep not in open_steps for dep in deps)
        if len(deps) > 1:
            step_row(tables, (run_id, slug)).deps_done = done
        if done == len(deps) and (slug in again or slug == END):
            ready.append((run_id, slug))
    progress = Progress(tables, now)
    advance(progress, ready=ready)
    return progress.notices
