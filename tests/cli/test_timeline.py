"""From a log to the spans that a timeline shows."""

from __future__ import annotations

import json
from io import StringIO

from rich.console import Console

from holdfast.cli.render_timeline import timeline
from holdfast.cli.timeline import Span, read_spans
from holdfast.types import JSON, Event


def event(type: str, at: int, key: str | None = None, **details: JSON) -> Event:
    return Event(type, key, json.dumps(details), at)


def error(message: str) -> JSON:
    return {"kind": "builtins.ValueError", "message": message}


def one(events: list[Event], ended_at: int | None = None) -> Span:
    (span,) = read_spans(events, ended_at)
    return span


def test_a_step_spans_from_its_start_to_its_record() -> None:
    span = one([event("StepCompleted", 9, "charge", result={"a": 1}, started_at=4)])
    assert (span.began_at, span.ended_at, span.outcome, span.note) == (4, 9, "done", '{"a":1}')
    assert (span.attempts, span.failures) == (1, ())


def test_failed_attempts_belong_to_their_step() -> None:
    events = [
        event("StepRetryScheduled", 5, "charge", attempt=1, error=error("no"), retry_at=7),
        event("StepCompleted", 9, "charge", result=1, started_at=7, attempt=2),
    ]
    span = one(events)
    assert (span.began_at, span.ended_at, span.attempts) == (5, 9, 2)
    assert [(each.number, each.error) for each in span.failures] == [(1, "ValueError: no")]


def test_an_exhausted_step_keeps_its_last_error() -> None:
    span = one([event("StepFailed", 9, "charge", error=error("no"), started_at=4, attempt=3)])
    assert (span.outcome, span.attempts, span.note) == ("failed", 3, "ValueError: no")


def test_a_step_between_attempts_is_open_until_the_run_ends() -> None:
    events = [event("StepRetryScheduled", 5, "s", attempt=1, error=error("no"), retry_at=7)]
    assert (one(events).outcome, one(events).ended_at) == ("open", None)
    assert (one(events, 8).outcome, one(events, 8).ended_at) == ("dropped", 8)


def test_a_timer_spans_from_its_record_to_its_firing() -> None:
    scheduled = event("TimerScheduled", 1, "timer", fire_at=2_000_000)
    assert one([scheduled]).outcome == "open"
    assert one([scheduled], 5).outcome == "dropped"
    fired = one([scheduled, event("TimerFired", 2_001_500, "timer", fire_at=2_000_000)])
    assert (fired.ended_at, fired.outcome, fired.note) == (2_001_500, "done", "fired 1.5 ms late")


def test_signals_values_cancels_and_losses_are_moments() -> None:
    events = [
        event("SignalReceived", 1, None, signal_name="packed", input=2),
        event("ValueSet", 2, "progress", value="half"),
        event("WorkflowCancelRequested", 3, None, reason="enough"),
        event("WorkerLost", 4, None, worker="w1", lease_no=1, task_key=""),
    ]
    spans = read_spans(events, None)
    assert [(span.kind, span.label, span.note) for span in spans] == [
        ("signal", "packed", "2"),
        ("value", "progress", '"half"'),
        ("cancel", "cancel requested", "enough"),
        ("lost", "worker lost", "w1"),
    ]
    assert all(span.began_at == span.ended_at for span in spans)


def test_spans_are_ordered_by_beginning() -> None:
    events = [
        event("StepCompleted", 3, "late", result=1, started_at=2),
        event("StepCompleted", 4, "early", result=1, started_at=1),
    ]
    assert [span.label for span in read_spans(events, None)] == ["early", "late"]


def test_bars_share_one_scale() -> None:
    events = [
        event("StepCompleted", 1_500_000, "first", result=1, started_at=1_000_000),
        event("StepCompleted", 2_000_000, "second", result=1, started_at=1_500_000),
    ]
    output = StringIO()
    spans = read_spans(events, 2_000_000)
    Console(file=output, width=120).print(timeline(spans, 1_000_000, 2_000_000, 2_000_000))
    first, second = output.getvalue().splitlines()
    assert first.index("━") < first.rindex("━") < second.index("━") < second.rindex("━")
    assert abs(first.count("━") - second.count("━")) <= 1
    assert "500 ms" in first
