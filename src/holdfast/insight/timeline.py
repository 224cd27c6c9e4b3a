"""Read a run's log as spans of time: waits before it began, steps, calls, timers, messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from holdfast import events
from holdfast.events import FORKED, read_last_failure
from holdfast.insight.call_spans import Calls, sent_call
from holdfast.insight.flow_spans import step_spans
from holdfast.insight.spans import (
    Attempt,
    Details,
    Kind,
    Outcome,
    Span,
    Timeline,
    error_text,
    failed_attempt,
    has_begun,
    is_external,
    json_text,
    number_of,
    read_details,
    read_json,
    recorded_text,
    text_of,
    traceback_text,
)
from holdfast.insight.wording import length, moment
from holdfast.store.port import Store
from holdfast.types import UPDATE_REPLY, Event, FlowStepState, RunRecord, Wait

_MOST_ACTIVITIES: Final = 10_000  # of a run, that may wait to be completed from outside


async def read_timeline(store: Store, run: RunRecord) -> Timeline:
    """Return what happened in a run until now."""
    log = (await store.read_events([(run.run_id, 0)])).get(run.run_id, [])
    spans = read_run_spans(run, log, await read_steps(store, run))
    spans = with_starts(spans, await read_starts(store, run, spans))
    return Timeline(run.run_id, run.created_at, run.completed_at, await store.now(), tuple(spans))


async def read_steps(
    store: Store, run: RunRecord, *, outputs: bool = True
) -> Sequence[FlowStepState]:
    """Return the steps of a flow's run, for `read_spans`; none if it is the run of a workflow.

    Without `outputs`, their spans have none as notes.
    """
    if run.kind != "flow":
        return ()
    return (await store.flow_steps([run.run_id], outputs=outputs)).get(run.run_id, ())


def read_run_spans(
    run: RunRecord, log: Sequence[Event], steps: Sequence[FlowStepState] = ()
) -> list[Span]:
    """Return a run's log as spans, with the time before its first claim: `delay` and `queue`."""
    spans = read_spans(log, run.completed_at, steps, run.due_at)
    if run.state == "waiting" and log:  # the log does not say that the code has left a timer
        last = log[-1].at
        spans = [_closed(span, last) if _is_left(span, run.wait) else span for span in spans]
    return [*_before_begin(run, has_begun(run, spans), log), *spans]


async def read_starts(store: Store, run: RunRecord, spans: Sequence[Span]) -> Mapping[str, int]:
    """Return when open activities of a run were first claimed, by key."""
    if not any(span.kind == "activity" and span.outcome == "open" for span in spans):
        return {}
    found = await store.list_activities(run.run_id)
    return {each.key: each.started_at for each in found if each.started_at is not None}


async def read_open(store: Store, run: RunRecord, log: Sequence[Event]) -> dict[str, bool]:
    """Return the keys of a run's open activities; True: it is to be completed from outside."""
    now, found = await store.now(), await store.list_activities(run.run_id, limit=_MOST_ACTIVITIES)
    spans = {span.key: span for span in read_spans(log, None) if span.kind == "activity"}
    return {each.key: is_external(each, spans.get(each.key), now) for each in found}


def with_starts(spans: Sequence[Span], starts: Mapping[str, int]) -> list[Span]:
    """Return spans with what `read_starts` has found."""
    return [
        replace(span, started_at=starts[span.key])
        if span.kind == "activity" and span.outcome == "open" and span.key in starts
        else span
        for span in spans
    ]


def read_spans(
    log: Sequence[Event],
    ended_at: int | None,
    steps: Sequence[FlowStepState] = (),
    due_at: int | None = None,
) -> list[Span]:
    """Return a log as spans, ordered by beginning. `ended_at` is the run's end, None before it.

    `steps` are those of a flow's run, `due_at` is when it could begin, if it was delayed.
    """
    reader = _Reader()
    for event in log:
        reader.read(event)
    spans = [_closed(span, ended_at) for span in reader.spans]
    for key, failures in reader.failures.items():
        spans.append(_between_attempts(key, failures, ended_at))
    spans += step_spans(log, steps, ended_at, due_at)
    return sorted(spans, key=lambda span: span.began_at)


def _why(details: Details) -> str:
    """Return the reason of a change, and who made it, as far as they are known."""
    reason, by = text_of(details, "reason"), text_of(details, "by")
    return ", ".join(part for part in (reason, f"by {by}" if by else "") if part)


def _rescheduled(details: Details) -> str:
    """Return what a change of a run has changed, and why."""
    parts = [f"queue {details['queue']}"] if "queue" in details else []
    if "start_at" in details:
        parts.append(f"to begin at {moment(number_of(details, 'start_at'))}")
    if "deadline_at" in details:
        at = number_of(details, "deadline_at")
        parts.append(f"deadline {moment(at)}" if at else "no deadline")
    return "; ".join([*parts, *filter(None, [_why(details)])])


def _closed(span: Span, ended_at: int | None) -> Span:
    if span.outcome != "open" or ended_at is None:
        return span
    note = span.note if span.kind == "child" else "no longer wanted"
    return replace(span, ended_at=ended_at, outcome="dropped", note=note)


def _is_left(span: Span, wait: Wait | None) -> bool:
    """Return True for a timer or a call of an entity that nothing waits for any more.

    A timer is due before the run wakes, or the run waits for no answer of an entity.
    """
    if span.kind == "entity":
        return wait is not None and wait.worker is None and UPDATE_REPLY not in wait.awaiting
    return (
        span.kind == "timer"
        and span.due_at is not None
        and wait is not None
        and wait.worker is None
        and (wait.visible_at is None or span.due_at < wait.visible_at)
    )


def _between_attempts(key: str, failures: list[Attempt], ended_at: int | None) -> Span:
    """Return the span of a step that has failed and has another attempt before it."""
    last = failures[-1]
    outcome: Outcome = "open" if ended_at is None else "dropped"
    return Span(
        "step",
        key,
        failures[0].at,
        ended_at,
        outcome,
        last.error,
        attempts=last.number,
        failures=tuple(failures),
    )


class _Reader:
    """Folds events into spans, in the order in which they began."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.failures: dict[str, list[Attempt]] = {}  # of steps, by key
        self._timers: dict[str, int] = {}  # key -> index in spans
        self._calls = Calls(self.spans)
        self._pause: int | None = None  # the index in spans of a pause that has not ended

    def read(self, event: Event) -> None:
        details = read_details(event.details)
        match event.type:
            case events.STEP_COMPLETED | events.STEP_FAILED:
                self._step(event, details)
            case events.STEP_RETRY:
                attempt = failed_attempt(details, event.at)
                self.failures.setdefault(event.key or "", []).append(attempt)
            case events.TIMER_SCHEDULED:
                self._timers[event.key or ""] = len(self.spans)
                self._add("timer", event.key or "", event.at, None, "open")
                due_at = number_of(details, "fire_at")
                self.spans[-1] = replace(self.spans[-1], due_at=due_at)
            case events.TIMER_FIRED:
                self._timer_fired(event, details)
            case events.SIGNAL_RECEIVED if details.get("update") is True:
                self._calls.begin_update(event, details)
            case events.SIGNAL_RECEIVED if self._calls.answer(event.at, details.get("input")):
                pass
            case events.PAUSED:
                self._pause = len(self.spans)
                self._add("pause", "paused", event.at, None, "open", _why(details))
            case events.RESUMED if self._pause is not None:
                span = self.spans[self._pause]
                self.spans[self._pause] = replace(span, ended_at=event.at, outcome="done")
                self._pause = None
            case events.FORKED:
                self._fork(event, details)
            case _:
                self._calls.read(event, details)
                self._note(event, details)

    def _fork(self, event: Event, details: Details) -> None:
        origin, failed = text_of(details, "run_id"), read_last_failure(event.details)
        if failed is None:
            self._add("fork", "forked", event.at, event.at, "noted", f"from run {origin}")
        else:
            error, label = error_text(read_json(failed.error)), f"attempt {failed.number} failed"
            self._add("fork", label, event.at, event.at, "failed", error)
        self.spans[-1] = replace(self.spans[-1], origin_run_id=origin)

    def _note(self, event: Event, details: Details) -> None:
        """Read an event that is a moment."""
        found: tuple[Kind, str, str] | None = None
        match event.type:
            case events.SIGNAL_RECEIVED:
                found = "signal", text_of(details, "signal_name"), json_text(details.get("input"))
            case events.SIGNAL_SENT:
                name, to = text_of(details, "signal_name"), text_of(details, "run_id")
                found = "sent", f"{name} sent", f"to run {to}"
            case events.VALUE_SET:
                found = "value", event.key or "", json_text(details.get("value"))
            case events.ATTRIBUTES_SET:
                found = "value", "attributes", json_text(details.get("attributes"))
            case events.VALUE_RECORDED if text := recorded_text(event.key or ""):
                found = "patch", event.key or "", text
            case events.RESCHEDULED:
                found = "change", "rescheduled", _rescheduled(details)
            case events.CANCEL_REQUESTED:
                found = "cancel", "cancel requested", _why(details)
            case events.TERMINATED:
                found = "end", "terminated", _why(details)
            case events.CONTINUED:
                label = "retried" if "attempt" in details else "continued as new"
                found = "end", label, f"run {text_of(details, 'run_id')}"
            case events.WORKER_LOST:
                key = text_of(details, "task_key")
                label = f"worker of {key} lost" if key else "worker lost"
                found = "lost", label, text_of(details, "worker")
            case _:
                pass
        if found is not None:
            kind, label, note = found
            outcome: Outcome = "failed" if kind == "lost" else "noted"
            self._add(kind, label, event.at, event.at, outcome, note)
            if kind == "sent":
                target = text_of(details, "run_id")
                self.spans[-1] = replace(self.spans[-1], target_run_id=target)

    def _step(self, event: Event, details: Details) -> None:
        key = event.key or ""
        failures = self.failures.pop(key, [])
        attempts = number_of(details, "attempt") or 1
        began = failures[0].at if failures else number_of(details, "started_at") or event.at
        began = min(began, number_of(details, "started_at") or event.at)
        failed = event.type == events.STEP_FAILED
        if failed:
            error = details.get("error")
            failures.append(
                Attempt(attempts, event.at, error_text(error), None, traceback_text(error))
            )
        result = details.get("result")
        if not failed and (call := sent_call(result)) is not None:
            self._calls.begin_call(key, began, attempts, call)
            return
        if not failed and isinstance(result, str):  # the answer may be looked for by a step
            self._calls.answer(event.at, result)
        note = error_text(details.get("error")) if failed else json_text(result)
        span = Span("step", key, began, event.at, "failed" if failed else "done", note)
        self.spans.append(replace(span, attempts=attempts, failures=tuple(failures)))

    def _timer_fired(self, event: Event, details: Details) -> None:
        index = self._timers.pop(event.key or "", None)
        if index is None:  # a timer so short that its beginning is not recorded
            self._add("timer", event.key or "", event.at, event.at, "done")
            return
        fire_at = number_of(details, "fire_at")
        late = max(0, event.at - fire_at) if fire_at else 0
        note = f"fired {length(late)} late" if late else "fired"
        self.spans[index] = replace(self.spans[index], ended_at=event.at, outcome="done", note=note)

    def _add(
        self,
        kind: Kind,
        label: str,
        began_at: int,
        ended_at: int | None,
        outcome: Outcome,
        note: str = "",
    ) -> None:
        self.spans.append(Span(kind, label, began_at, ended_at, outcome, note))


def _before_begin(run: RunRecord, begun: bool, log: Sequence[Event]) -> Iterator[Span]:
    """Yield how long the start was delayed, then how long the run waited in its queue.

    No worker claims the run of a flow: it begins with its steps. The next attempt of a run that has
    failed begins after a pause.
    """
    first, began_at, label = run.created_at, run.started_at, "start delayed"
    mark = next((each for each in reversed(log) if each.type == FORKED), None)
    if mark is not None and (failed := read_last_failure(mark.details)) is not None:
        first, label = mark.at, f"pause before attempt {failed.number + 1}"
    if run.due_at is not None:
        waits = run.state == "waiting" and not begun
        over_at = min(run.due_at, run.completed_at or run.due_at)
        outcome: Outcome = "open" if waits else "done"
        ended_at = None if waits else over_at
        yield Span("delay", label, first, ended_at, outcome, due_at=run.due_at)
        first = over_at
        if waits:
            return
    if run.kind == "workflow" and began_at is None and (run.completed_at or first + 1) > first:
        ended = run.completed_at is not None
        note = "no worker took it" if ended else f"no worker has taken it from queue {run.queue}"
        outcome = "dropped" if ended else "open"
        yield Span("queue", "in the queue", first, run.completed_at, outcome, note)
    elif run.kind == "workflow" and began_at is not None and began_at > first:
        yield Span("queue", "in the queue", first, began_at, "done", f"queue {run.queue}")
