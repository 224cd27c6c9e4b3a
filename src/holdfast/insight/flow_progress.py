"""How far the steps of a flow's run are, as people see it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from holdfast.insight.spans import error_text, read_json, text_of
from holdfast.types import (
    JSON,
    FlowStepState,
    OpenStepTasks,
    SkipReason,
    StepKind,
    StepPhase,
    StepShape,
    TriggerRule,
    Value,
)
from holdfast.values.composing import compose

StepState: TypeAlias = Literal[
    "created",
    "delayed",
    "queued",
    "running",
    "retrying",
    "completed",
    "failed",
    "skipped",
    "stopped",
]

SKIPPED: Final[Mapping[SkipReason, str]] = {
    "condition_unmet": "its condition was not met",
    "handler_failed": "its last attempt failed",
    "dependency_skipped": "a step before it was skipped",
    "dependency_failed": "a step before it failed",
}
_ENDED: Final = ("completed", "failed", "skipped")
_PHASES: Final[tuple[StepPhase, ...]] = ("running", "due", "retrying", "delayed", "waiting")


class StepProgress(Value, frozen=True, kw_only=True):
    """How far a step of a flow's run is.

    `state`: `created` waits for steps before it, or never began if the run has ended; `delayed`
    waits for its moment; `queued` is due; `running` is on `workers`; `retrying` waits for its next
    attempt; `stopped` was under way when the run ended. `completed`, `failed` and `skipped` are
    ends.

    `tasks` is how many elements a map has that has begun, `done` how many of them have ended,
    `failed_tasks` how many failed of a map that tolerates some. `attempts` is the number of the
    last attempt, of a map the largest of its open elements, or that of the element that failed it.
    `next_at` is when the task of a step that is delayed or retrying may be claimed. `output` and
    `error` are JSON texts. Moments are in microseconds since 1970 UTC.
    """

    step: str
    kind: StepKind
    deps: tuple[str, ...]
    state: StepState
    tasks: int | None = None
    done: int = 0
    attempts: int = 0
    workers: tuple[str, ...] = ()
    output: str | None = None
    error: str | None = None
    skip_reason: SkipReason | None = None
    started_at: int | None = None
    ended_at: int | None = None
    next_at: int | None = None
    trigger_rule: TriggerRule = "none_failed"
    failed_tasks: int = 0

    @property
    def has_ended(self) -> bool:
        """True if the step has ended: nothing of it will run in this run."""
        return self.state in _ENDED

    @property
    def error_line(self) -> str:
        """The error of the step, or of its last attempt, as one line; empty if there is none.

        Of a step that was skipped because another one failed, it names that one.
        """
        if self.skip_reason == "dependency_failed":
            error = read_json(self.error)
            return text_of(error, "message") if isinstance(error, dict) else ""
        return error_text(raised(self.error))


def graph_steps(states: Iterable[FlowStepState | StepProgress]) -> tuple[StepShape, ...]:
    """Return the graph of the steps that a run has or had, without their options."""
    return tuple(
        StepShape(slug=each.step, kind=each.kind, deps=each.deps, trigger_rule=each.trigger_rule)
        for each in states
    )


def progress_of(
    states: Sequence[FlowStepState], tasks: Sequence[OpenStepTasks], *, ended: bool
) -> list[StepProgress]:
    """Return the steps of a run with what is known of their open tasks."""
    due = {each.step for each in tasks}
    return [
        _with_tasks(step, [each for each in tasks if each.step == step.step])
        for step in _of_states(states, due, ended)
    ]


def progress_without_tasks(
    states: Sequence[FlowStepState], *, ended: bool, runs: Container[str] = ()
) -> list[StepProgress]:
    """Return the steps of a run from their states alone, which costs less to read.

    A map that has begun counts as running, and so does a step of `runs`, which is another run and
    has no worker; a step that is delayed counts as queued.
    """
    steps = _of_states(states, (), ended)
    over = {step.step for step in steps if step.has_ended}
    others = {step.step for step in steps if step.trigger_rule != "always"}
    return steps if ended else [_guessed(step, over, others, runs) for step in steps]


def raised(error: str | None) -> JSON:
    """Return what the code of a step raised: an error that names its step has it as its cause."""
    found = read_json(error)
    cause: JSON = found.get("cause") if isinstance(found, dict) and "step" in found else None
    return cause or found


def _of_states(
    states: Sequence[FlowStepState], due: Container[str], ended: bool
) -> list[StepProgress]:
    """Return steps by what is stored of them.

    If one that always runs has begun, the others have ended, or were stopped by a cancel.
    """
    is_over = any(
        each.trigger_rule == "always" and (each.status != "created" or each.step in due)
        for each in states
    )
    return [
        _of_state(each, ended or (is_over and each.trigger_rule != "always")) for each in states
    ]


def _of_state(state: FlowStepState, ended: bool) -> StepProgress:
    initial, left = state.initial_tasks, state.remaining_tasks
    begins_at = state.started_at if state.status == "created" else None  # of a run, later
    return compose(
        StepProgress,
        state,
        state=_stored_state(state, ended),
        started_at=None if begins_at is not None else state.started_at,
        next_at=None if ended else begins_at,
        tasks=initial if state.kind == "map" else None,
        done=0 if initial is None or left is None else initial - left,
        attempts=state.attempts or 0,
        workers=() if state.worker is None else (state.worker,),
    )


def _stored_state(state: FlowStepState, ended: bool) -> StepState:
    if state.status == "started":
        return "stopped" if ended else "running"
    if state.status == "created" and state.started_at is not None and not ended:
        return "delayed"
    return state.status


def _with_tasks(step: StepProgress, tasks: Sequence[OpenStepTasks]) -> StepProgress:
    if step.has_ended or not tasks:
        return step
    first = min(tasks, key=lambda each: _PHASES.index(each.phase))
    state: StepState = "queued"
    if first.phase != "due" and first.phase != "waiting":
        state = first.phase
    failed = [each for each in tasks if each.error is not None]
    newest = max(failed, key=lambda each: each.visible_at, default=None)
    return replace(
        step,
        state=state,
        attempts=max(each.attempts for each in tasks),
        workers=tuple(each.worker for each in tasks if each.worker is not None),
        error=None if newest is None else newest.error,
        next_at=first.visible_at if first.phase in ("retrying", "delayed") else None,
    )


def _guessed(
    step: StepProgress, over: Set[str], others: Set[str], runs: Container[str]
) -> StepProgress:
    """Return a step with its likely state; `over` have ended, `others` do not always run."""
    needed = others if step.trigger_rule == "always" else set(step.deps)
    if step.state == "created" and over >= needed:
        return replace(step, state="queued")
    is_own = step.kind == "single" and step.step not in runs
    if step.state == "running" and is_own and not step.workers:
        return replace(step, state="retrying")
    return step
