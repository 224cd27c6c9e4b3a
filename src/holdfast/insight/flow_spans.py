"""The steps of a flow's run as spans of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.events import FLOW_STEP_RETRY
from holdfast.insight.flow_progress import (
    SKIPPED,
    StepProgress,
    StepState,
    progress_without_tasks,
    raised,
)
from holdfast.insight.spans import (
    Attempt,
    Details,
    Outcome,
    Span,
    failed_attempt,
    number_of,
    read_details,
    read_json,
    traceback_text,
)
from holdfast.insight.wording import several
from holdfast.types import Event, FlowStepState

_OUTCOMES: Final[Mapping[StepState, Outcome]] = {
    "completed": "done",
    "failed": "failed",
    "skipped": "dropped",
    "stopped": "dropped",
}


def step_spans(
    log: Sequence[Event],
    states: Sequence[FlowStepState],
    ended_at: int | None,
    due_at: int | None = None,
) -> Iterator[Span]:
    """Yield a span for each step that has begun or ended. `ended_at` is the run's end.

    The span of a single step begins when a worker could claim it: when the steps before it had
    ended, not before `due_at`, that of a delayed run.

    The log says when attempts failed; single steps have no entry for their beginning, so when
    they began is in their states.
    """
    failures: dict[str, list[Attempt]] = {}
    for event in log:
        if event.type == FLOW_STEP_RETRY and event.key is not None:
            details = read_details(event.details)
            attempt = failed_attempt(details, event.at)
            attempt = replace(attempt, error=_elements(details) + attempt.error)
            failures.setdefault(event.key, []).append(attempt)
    ready = _ready(states, max(log[0].at if log else 0, due_at or 0))
    for step in progress_without_tasks(states, ended=ended_at is not None):
        span = _span(step, failures.get(step.step, []), ended_at, ready.get(step.step))
        if span is not None:
            yield span


def _elements(details: Details) -> str:
    """Return which elements of a map have failed, nothing for a single step."""
    if details.get("task_index") is None:
        return ""
    count, first = number_of(details, "tasks"), number_of(details, "task_index")
    return f"{several(count, 'element')}: " if count > 1 else f"element {first:,}: "


def _ready(states: Sequence[FlowStepState], first: int) -> Mapping[str, int]:
    """Return when single steps could be claimed, of those that were claimed later."""
    ends = {state.step: state.ended_at for state in states}
    found: dict[str, int] = {}
    for state in states:
        before = [ends.get(step) for step in state.deps]
        if state.kind != "single" or None in before or state.started_at is None:
            continue
        if state.status == "created":  # a run that begins later
            continue
        at = max([first, *filter(None, before)]) + state.delay_seconds * 1_000_000
        if at < state.started_at:
            found[state.step] = at
    return found


def _span(
    step: StepProgress, failures: list[Attempt], run_ended_at: int | None, ready_at: int | None
) -> Span | None:
    began_at = step.ended_at if step.started_at is None else step.started_at
    if ready_at is not None:
        began_at = ready_at
    if began_at is None:
        return None
    ended_at, error = step.ended_at, step.error_line
    if step.state == "stopped":
        ended_at = run_ended_at
    if error and ended_at is not None and step.skip_reason != "dependency_failed":
        number = step.attempts or _attempts(step.error) or len(failures) + 1
        last = Attempt(number, ended_at, error, None, traceback_text(raised(step.error)))
        failures = [*failures, last]
    return Span(
        "step",
        step.step,
        began_at,
        ended_at,
        _OUTCOMES.get(step.state, "open"),
        _note(step, failures),
        attempts=max([1, step.attempts, *(each.number for each in failures)]),
        failures=tuple(failures),
        key=step.step,
        started_at=step.started_at,
    )


def _note(step: StepProgress, failures: Sequence[Attempt]) -> str:
    match step.state:
        case "completed":
            if step.tasks is None:
                return step.output or ""
            failed = f", {step.failed_tasks:,} failed" if step.failed_tasks else ""
            return several(step.tasks, "element") + failed
        case "failed":
            return step.error_line
        case "skipped":
            why = SKIPPED.get(step.skip_reason or "condition_unmet", "")
            return f"skipped: {step.error_line or why}"
        case "stopped":
            return "the run ended first"
        case _:
            parts = [] if step.tasks is None else [f"{step.done:,} of {step.tasks:,} done"]
            return " · ".join([*parts, *(failure.error for failure in failures[-1:])])


def _attempts(error: str | None) -> int:
    found = read_json(error)
    return number_of(found, "attempts") if isinstance(found, dict) else 0
