"""A run's log as the spans of time that people think in: steps, timers, signals, losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast

import msgspec

from holdfast.types import JSON, Event

Kind: TypeAlias = Literal["step", "timer", "signal", "value", "cancel", "lost", "end"]
Outcome: TypeAlias = Literal["done", "failed", "open", "dropped", "noted"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try of a step that failed. `retry_at` is None where it was the last."""

    number: int
    at: int
    error: str
    retry_at: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """Something that happened in a run. A moment has the same beginning and end.

    `open` has no end yet; `dropped` was no longer wanted when the run went on.
    """

    kind: Kind
    label: str
    began_at: int
    ended_at: int | None
    outcome: Outcome
    note: str = ""
    attempts: int = 1
    failures: tuple[Attempt, ...] = ()


@dataclass(slots=True)
class _Reader:
    """Folds events into spans, in the order in which they began."""

    spans: list[Span] = field(default_factory=list[Span])
    failures: dict[str, list[Attempt]] = field(default_factory=dict[str, list[Attempt]])
    timers: dict[str, int] = field(default_factory=dict[str, int])  # key -> place in spans

    def read(self, event: Event) -> None:
        details = _object(event.details)
        match event.type:
            case "StepCompleted" | "StepFailed":
                self._step(event, details)
            case "StepRetryScheduled":
                self._retry(event, details)
            case "TimerScheduled":
                self.timers[event.key or ""] = len(self.spans)
                note = f"until {_number(details, 'fire_at')}"
                self._add("timer", event.key or "", event.at, None, "open", note)
            case "TimerFired":
                self._timer_fired(event, details)
            case "SignalReceived":
                name, note = _text(details, "signal_name"), _json(details.get("input"))
                self._add("signal", name, event.at, event.at, "noted", note)
            case "ValueSet":
                note = _json(details.get("value"))
                self._add("value", event.key or "", event.at, event.at, "noted", note)
            case "WorkflowCancelRequested":
                note = _text(details, "reason")
                self._add("cancel", "cancel requested", event.at, event.at, "noted", note)
            case "WorkflowTerminated":
                note = _text(details, "reason")
                self._add("end", "terminated", event.at, event.at, "noted", note)
            case "WorkerLost":
                note = _text(details, "worker")
                self._add("lost", "worker lost", event.at, event.at, "failed", note)
            case _:
                pass

    def _step(self, event: Event, details: Mapping[str, JSON]) -> None:
        key = event.key or ""
        failures = self.failures.pop(key, [])
        attempts = _number(details, "attempt") or 1
        began = failures[0].at if failures else _number(details, "started_at") or event.at
        began = min(began, _number(details, "started_at") or event.at)
        failed = event.type == "StepFailed"
        if failed:
            failures.append(Attempt(attempts, event.at, error_text(details.get("error")), None))
        note = error_text(details.get("error")) if failed else _json(details.get("result"))
        span = Span("step", key, began, event.at, "failed" if failed else "done", note)
        self.spans.append(replace(span, attempts=attempts, failures=tuple(failures)))

    def _retry(self, event: Event, details: Mapping[str, JSON]) -> None:
        attempt = Attempt(
            _number(details, "attempt"),
            event.at,
            error_text(details.get("error")),
            _number(details, "retry_at"),
        )
        self.failures.setdefault(event.key or "", []).append(attempt)

    def _timer_fired(self, event: Event, details: Mapping[str, JSON]) -> None:
        place = self.timers.pop(event.key or "", None)
        if place is None:  # short, so that its beginning was not worth a record
            self._add("timer", event.key or "", event.at, event.at, "done")
            return
        fire_at = _number(details, "fire_at")
        late = max(0, event.at - fire_at) if fire_at else 0
        note = f"fired {late / 1000:.1f} ms late" if late else "fired"
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
    return replace(span, ended_at=ended_at, outcome="dropped", note="no longer wanted")


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


def error_text(value: JSON) -> str:
    """Write a recorded error as one line."""
    if not isinstance(value, dict):
        return ""
    kind = _text(value, "kind").removeprefix("builtins.")
    message = _text(value, "message")
    return f"{kind}: {message}" if message else kind


def _object(details: str | None) -> Mapping[str, JSON]:
    value: object = msgspec.json.decode(details) if details else None
    return cast("dict[str, JSON]", value) if isinstance(value, dict) else {}


def _json(value: JSON) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()


def _text(details: Mapping[str, JSON], name: str) -> str:
    value = details.get(name)
    return value if isinstance(value, str) else ""


def _number(details: Mapping[str, JSON], name: str) -> int:
    value = details.get(name)
    return int(value) if isinstance(value, int | float) else 0
