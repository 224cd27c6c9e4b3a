"""A run's log as the spans of time that people think in: steps, calls, timers, signals, losses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from holdfast.cli.remote_spans import RemoteReader
from holdfast.cli.spans import (
    Attempt,
    Details,
    Kind,
    Outcome,
    Span,
    error_text,
    failed_attempt,
    json_text,
    number_of,
    read_details,
    text_of,
    traceback_text,
)
from holdfast.cli.wording import length
from holdfast.types import Event


@dataclass(slots=True)
class _Reader:
    """Folds events into spans, in the order in which they began."""

    spans: list[Span] = field(default_factory=list[Span])
    failures: dict[str, list[Attempt]] = field(default_factory=dict[str, list[Attempt]])
    timers: dict[str, int] = field(default_factory=dict[str, int])  # key -> place in spans
    paused: int | None = None  # the place in spans of a pause that has not ended
    remote: RemoteReader = field(init=False)

    def __post_init__(self) -> None:
        self.remote = RemoteReader(self.spans)

    def read(self, event: Event) -> None:
        details = read_details(event.details)
        match event.type:
            case "StepCompleted" | "StepFailed":
                self._step(event, details)
            case "StepRetryScheduled":
                attempt = failed_attempt(details, event.at)
                self.failures.setdefault(event.key or "", []).append(attempt)
            case "TimerScheduled":
                self.timers[event.key or ""] = len(self.spans)
                note = f"until {number_of(details, 'fire_at')}"
                self._add("timer", event.key or "", event.at, None, "open", note)
            case "TimerFired":
                self._timer_fired(event, details)
            case "SignalReceived" if details.get("update") is True:
                self.remote.begin_update(event, details)
            case "WorkflowPaused":
                self.paused = len(self.spans)
                self._add("pause", "paused", event.at, None, "open", text_of(details, "reason"))
            case "WorkflowResumed" if self.paused is not None:
                span = self.spans[self.paused]
                self.spans[self.paused] = replace(span, ended_at=event.at, outcome="done")
                self.paused = None
            case "WorkflowForked":
                origin = text_of(details, "run_id")
                self._add("fork", "forked", event.at, event.at, "noted", f"from run {origin}")
                self.spans[-1] = replace(self.spans[-1], origin_run_id=origin)
            case _:
                self.remote.read(event, details)
                self._note(event, details)

    def _note(self, event: Event, details: Details) -> None:
        """Read what has no length."""
        found: tuple[Kind, str, str] | None = None
        match event.type:
            case "SignalReceived":
                found = "signal", text_of(details, "signal_name"), json_text(details.get("input"))
            case "SignalSent":
                name, to = text_of(details, "signal_name"), text_of(details, "run_id")
                found = "sent", f"{name} sent", f"to run {to}"
            case "ValueSet":
                found = "value", event.key or "", json_text(details.get("value"))
            case "ValueRecorded":
                found = "patch", event.key or "", "changed code takes its new path"
            case "WorkflowCancelRequested":
                found = "cancel", "cancel requested", text_of(details, "reason")
            case "WorkflowTerminated":
                found = "end", "terminated", text_of(details, "reason")
            case "WorkflowContinuedAsNew":
                found = "end", "continued as new", f"run {text_of(details, 'run_id')}"
            case "WorkerLost":
                key = text_of(details, "task_key")
                label = f"worker of {key} lost" if key else "worker lost"
                found = "lost", label, text_of(details, "worker")
            case _:
                pass
        if found is not None:
            kind, label, note = found
            self._add(
                kind, label, event.at, event.at, "failed" if kind == "lost" else "noted", note
            )

    def _step(self, event: Event, details: Details) -> None:
        key = event.key or ""
        failures = self.failures.pop(key, [])
        attempts = number_of(details, "attempt") or 1
        began = failures[0].at if failures else number_of(details, "started_at") or event.at
        began = min(began, number_of(details, "started_at") or event.at)
        failed = event.type == "StepFailed"
        if failed:
            error = details.get("error")
            failures.append(
                Attempt(attempts, event.at, error_text(error), None, traceback_text(error))
            )
        note = error_text(details.get("error")) if failed else json_text(details.get("result"))
        span = Span("step", key, began, event.at, "failed" if failed else "done", note)
        self.spans.append(replace(span, attempts=attempts, failures=tuple(failures)))

    def _timer_fired(self, event: Event, details: Details) -> None:
        place = self.timers.pop(event.key or "", None)
        if place is None:  # short, so that its beginning was not worth a record
            self._add("timer", event.key or "", event.at, event.at, "done")
            return
        fire_at = number_of(details, "fire_at")
        late = max(0, event.at - fire_at) if fire_at else 0
        note = f"fired {length(late)} late" if late else "fired"
        self.spans[place] = replace(self.spans[place], ended_at=event.at, outcome="done", note=note)

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


def read_spans(events: Iterable[Event], ended_at: int | None) -> list[Span]:
    """Read a log as spans, ordered by beginning. `ended_at` is the run's end, None before it."""
    reader = _Reader()
    for event in events:
        reader.read(event)
    spans = [_closed(span, ended_at) for span in reader.spans]
    for key, failures in reader.failures.items():
        spans.append(_between_attempts(key, failures, ended_at))
    return sorted(spans, key=lambda span: span.began_at)


def _closed(span: Span, ended_at: int | None) -> Span:
    if span.outcome != "open" or ended_at is None:
        return span
    note = span.note if span.kind == "child" else "no longer wanted"
    return replace(span, ended_at=ended_at, outcome="dropped", note=note)


def _between_attempts(key: str, failures: list[Attempt], ended_at: int | None) -> Span:
    """Return the span of a step that has failed and has not been tried to the end."""
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
