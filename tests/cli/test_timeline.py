"""From a log to the spans that a timeline shows."""

from __future__ import annotations

import asyncio
import json
import sys
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console

from holdfast import App, Context
from holdfast.cli.render.console import console
from holdfast.cli.render.flows import steps_table
from holdfast.cli.render.timeline import timeline
from holdfast.insight.flow_progress import StepProgress
from holdfast.insight.folding import Fold, fold
from holdfast.insight.spans import Attempt, Span, Timeline, is_queued
from holdfast.insight.timeline import read_run_spans, read_spans, with_starts
from holdfast.server.pages.strips import Bar, Scale, make_strips
from holdfast.testing import Environment
from holdfast.types import JSON, Event, FlowStepState, RunRecord


def event(type: str, at: int, key: str | None = None, **details: JSON) -> Event:
    return Event(type, key, json.dumps(details), at)


def error(message: str) -> JSON:
    return {"kind": "builtins.ValueError", "message": message}


def one(events: list[Event], ended_at: int | None = None) -> Span:
    (span,) = read_spans(events, ended_at)
    return span


def test_what_failed_is_told_from_what_is_done_in_any_encoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each sign was a question mark."""
    stdout = TextIOWrapper(BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    console().print("✓ pack ━━ ✗ draw ┄ café")
    stdout.flush()
    assert stdout.buffer.getvalue() == b"+ pack == x draw - caf?\n"  # type: ignore[attr-defined]


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


def test_a_timer_that_fires_very_late_says_so_in_hours() -> None:
    at = 7_200_000_000
    fired = [
        event("TimerScheduled", 1, "timer", fire_at=1_000_000),
        event("TimerFired", at + 1_000_000, "timer", fire_at=1_000_000),
    ]
    assert one(fired).note == "fired 2 h late"


def test_a_patch_is_a_moment() -> None:
    span = one([event("ValueRecorded", 3, "patch:fee", value=True)])
    assert (span.kind, span.label, span.began_at, span.ended_at) == ("patch", "patch:fee", 3, 3)


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


def test_a_narrow_terminal_cuts_labels_and_notes_but_not_times() -> None:
    label, note = "a-step-whose-name-is-rather-long", "a note that is longer than what is left"
    events = [event("StepCompleted", 2_500_000, label, result=note, started_at=1_250_000)]
    output = StringIO()
    spans = read_spans(events, 3_000_000)
    Console(file=output, width=100).print(timeline(spans, 1_000_000, 3_000_000, 3_000_000))
    (line,) = output.getvalue().splitlines()
    assert line.startswith("+250 ms ✓ a-step-whose-")
    assert " 1.2 s " in line
    assert label not in line
    assert note not in line


def test_only_the_newest_failed_attempts_of_a_span_have_lines() -> None:
    attempts = tuple(Attempt(n, n, f"element {n}: no", n + 1) for n in range(300))
    span = Span("step", "fetch", 0, 400, "done", failures=attempts)
    for whole, lines in ((False, 12), (True, 301)):
        output = StringIO()
        Console(file=output, width=100).print(timeline([span], 0, 400, 400, whole=whole))
        assert len(output.getvalue().splitlines()) == lines
        assert "element 299: no" in output.getvalue()
        assert ("290 attempts failed" in output.getvalue()) is not whole


def test_a_long_reason_leaves_room_for_the_names_and_states_of_steps() -> None:
    error = json.dumps({"kind": "x.Error", "message": "no connection to any of them " * 4})
    step = StepProgress(
        step="fetch_every_page", kind="map", deps=(), state="failed", tasks=3000, error=error
    )
    output = StringIO()
    Console(file=output, width=100).print(steps_table([step], 0))
    line = output.getvalue()
    assert "fetch_every_page[] failed ░░░░░░░░░░ 0/3,000 " in line
    assert "no connection" in line
    assert len(line.splitlines()) == 1


def test_a_long_key_keeps_its_end() -> None:
    key = "deliver/collect#2/support.tool.look_up_order.call-17"
    output = StringIO()
    spans = read_spans([event("StepCompleted", 9, key, result=1, started_at=4)], 9)
    Console(file=output, width=160).print(timeline(spans, 0, 9, 9))
    assert "…" + key[-39:] in output.getvalue()


def test_an_activity_spans_from_its_start_to_its_end() -> None:
    ordered = event("ActivityScheduled", 1, "resize", activity_name="resize", queue="gpu")
    assert (one([ordered]).kind, one([ordered]).outcome, one([ordered]).note) == (
        "activity",
        "open",
        "queue gpu",
    )
    retried = event("ActivityRetryScheduled", 3, "resize", attempt=1, error=error("no"), retry_at=4)
    ended = event("ActivityCompleted", 9, "resize", result={"w": 1}, attempt=2)
    span = one([ordered, retried, ended])
    assert (span.began_at, span.ended_at, span.outcome, span.note) == (1, 9, "done", '{"w":1}')
    assert (span.attempts, [each.error for each in span.failures]) == (2, ["ValueError: no"])
    failed = event("ActivityFailed", 9, "resize", error=error("bad"), attempt=3)
    assert (one([ordered, failed]).outcome, one([ordered, failed]).note) == (
        "failed",
        "ValueError: bad",
    )
    cancelled = event("ActivityCancelRequested", 5, "resize")
    assert (one([ordered, cancelled, failed]).outcome, one([ordered, cancelled]).ended_at) == (
        "dropped",
        5,
    )


def test_an_activity_whose_stop_is_waited_for_spans_to_its_end() -> None:
    ordered = event("ActivityScheduled", 1, "resize", queue="gpu", on_cancel="wait")
    cancelled = event("ActivityCancelRequested", 5, "resize")
    assert one([ordered, cancelled]).outcome == "open"
    stopped = one([ordered, cancelled, event("ActivityFailed", 9, "resize", error=error("bad"))])
    assert (stopped.outcome, stopped.ended_at) == ("failed", 9)


def test_a_child_spans_from_its_start_to_its_end() -> None:
    started = event("ChildStarted", 1, "ship#2", workflow_name="ship", child_run_id="c-1")
    assert (one([started]).label, one([started]).child_run_id) == ("ship#2", "c-1")
    completed = one([started, event("ChildCompleted", 4, "ship#2", child_run_id="c-1", output=7)])
    assert (completed.outcome, completed.note) == ("done", "7")
    lost = event("ChildFailed", 4, "ship#2", child_run_id="c-1", status="timed_out", error=None)
    assert (one([started, lost]).outcome, one([started, lost]).note) == ("failed", "timed out")


def test_an_approval_spans_from_the_request_to_the_decision() -> None:
    """T4."""
    asked = event("ApprovalRequested", 1, "refund", title="Refund?")
    assert (one([asked]).label, one([asked]).outcome) == ("Refund?", "open")
    decided = event("ApprovalResolved", 5, "refund", approved=False, by="ann", feedback="late")
    assert (one([asked, decided]).outcome, one([asked, decided]).note) == (
        "failed",
        "rejected by ann: late",
    )
    assert one([asked, event("ApprovalWithdrawn", 5, "refund")]).outcome == "dropped"


def test_an_update_spans_from_the_request_to_the_answer() -> None:
    asked = event("SignalReceived", 1, "u", signal_name="add", input=2, update=True)
    assert (one([asked]).kind, one([asked]).label, one([asked]).note) == ("update", "add", "2")
    answered = event("UpdateCompleted", 3, "u", update_name="add", result=5)
    assert (one([asked, answered]).outcome, one([asked, answered]).note) == ("done", "5")
    for type in ("UpdateRejected", "UpdateCompleted"):
        refused = event(type, 3, "u", update_name="add", error=error("sold out"))
        assert (one([asked, refused]).outcome, one([asked, refused]).note) == (
            "failed",
            "ValueError: sold out",
        )


def test_a_pause_lasts_until_the_run_is_resumed() -> None:
    paused = event("WorkflowPaused", 1, reason="lunch")
    assert (one([paused]).outcome, one([paused]).note) == ("open", "lunch")
    assert one([paused, event("WorkflowResumed", 6)]).ended_at == 6


def test_every_kind_of_span_has_a_sign() -> None:
    output = StringIO()
    events = [
        event("ActivityScheduled", 1, "a", activity_name="a", queue="q"),
        event("ChildStarted", 1, "c", workflow_name="c", child_run_id="c-1"),
        event("ApprovalRequested", 1, "p", title="p"),
        event("SignalReceived", 1, "u", signal_name="u", update=True),
        event("WorkflowPaused", 1),
        event("WorkflowForked", 1, run_id="o-1"),
        event("ValueRecorded", 1, "patch:fee", value=True),
        event("SignalSent", 1, "signal", signal_name="s", run_id="o-1"),
        event("WorkflowContinuedAsNew", 2, run_id="n-1"),
        event("SignalSent", 2, "s", signal_name="s", run_id="t-1"),
    ]
    Console(file=output, width=120).print(timeline(read_spans(events, None), 1, None, 9))
    for sign in "⇢↳☐⇄‖⑂■✉":
        assert sign in output.getvalue()


def test_a_long_timeline_has_one_line_for_similar_spans() -> None:
    done = [
        Span("activity", f"render#{n}", n, n + 5, "done", key=f"render#{n}") for n in range(500)
    ]
    failed = Span("activity", "render#77", 77, 80, "failed", "ValueError: no page")
    few = [Span("step", f"open#{n}", n, n, "done") for n in range(2)]
    spans = [*few, *done[:77], failed, *done[78:]]
    lines = list(fold(spans))
    assert lines[:2] == few
    (folded,) = [each for each in lines if isinstance(each, Fold)]
    assert (folded.label, len(folded.spans)) == ("render", 499)
    assert (folded.together().began_at, folded.together().ended_at) == (0, 504)
    assert lines[-1] == failed
    output = StringIO()
    Console(file=output, width=100).print(timeline(spans, 0, 600, 600, whole=False))
    assert "render x 499" in output.getvalue()
    assert "render#77" in output.getvalue()
    assert len(output.getvalue().splitlines()) == 4


def test_workers_that_were_lost_with_many_elements_have_one_line() -> None:
    lost = [Span("lost", f"worker of fetch:{n} lost", n, n, "failed", "w-1") for n in range(70)]
    (folded,) = fold(lost)
    assert isinstance(folded, Fold)
    assert (folded.label, len(folded.spans)) == ("worker of fetch lost", 70)


def test_a_short_timeline_is_whole() -> None:
    spans = [Span("step", f"pack#{n}", n, n, "done") for n in range(60)]
    assert list(fold(spans)) == spans


def record(**fields: Any) -> RunRecord:
    """Return a run that was created at 0 and waits in the queue of its own name."""
    known: dict[str, Any] = {
        "run_id": UUID(int=1),
        "name": "order",
        "version": 1,
        "key": None,
        "queue": "slow",
        "priority": 2,
        "status": "running",
        "state": "queued",
        "input": None,
        "output": None,
        "error": None,
        "tags": (),
        "headers": None,
        "retention_seconds": None,
        "created_at": 0,
        "started_at": None,
        "completed_at": None,
        "deadline_at": None,
        "wait": None,
    }
    return RunRecord(**{**known, **fields})


def waits(**fields: Any) -> list[tuple[str, int, int | None, str]]:
    """Return the delay and the time in the queue of a run."""
    return [
        (span.kind, span.began_at, span.ended_at, span.outcome)
        for span in read_run_spans(record(**fields), [])
    ]


def test_the_time_in_the_queue_is_apart_from_the_delay() -> None:
    """The queue begins when the run could begin, and ends at its first claim."""
    assert waits(started_at=7) == [("queue", 0, 7, "done")]
    assert waits(started_at=7, due_at=5) == [("delay", 0, 5, "done"), ("queue", 5, 7, "done")]
    assert waits(started_at=5, due_at=5) == [("delay", 0, 5, "done")]
    assert waits() == [("queue", 0, None, "open")]
    assert waits(due_at=5) == [("delay", 0, 5, "done"), ("queue", 5, None, "open")]
    assert waits(due_at=5, state="waiting") == [("delay", 0, None, "open")]


def test_a_run_that_ended_before_a_claim_was_in_the_queue_until_then() -> None:
    ended = {"status": "cancelled", "state": "cancelled"}
    assert waits(completed_at=9, **ended) == [("queue", 0, 9, "dropped")]
    assert waits(completed_at=9, due_at=20, **ended) == [("delay", 0, 9, "done")]


def test_a_run_of_a_flow_has_no_time_in_a_queue() -> None:
    """Its steps have: no worker claims the run itself."""
    assert waits(kind="flow", started_at=0, state="running") == []
    assert waits(kind="flow", started_at=0, due_at=5, state="waiting") == [
        ("delay", 0, None, "open")
    ]


def scheduled(*more: Event) -> Span:
    """Return the span of an activity that was scheduled at 10."""
    events = [event("ActivityScheduled", 10, "a", queue="slow"), *more]
    return one(events)


def test_an_activity_waits_in_a_queue_until_its_first_attempt() -> None:
    done = event("ActivityCompleted", 90, "a", result=1, attempt=1, started_at=40)
    assert (scheduled(done).began_at, scheduled(done).started_at) == (10, 40)
    retry = event(
        "ActivityRetryScheduled", 50, "a", attempt=1, error=error("no"), retry_at=60, started_at=30
    )
    again = event("ActivityCompleted", 90, "a", result=1, attempt=2, started_at=70)
    assert scheduled(retry, again).started_at == 30
    old = event("ActivityRetryScheduled", 50, "a", attempt=1, error=error("no"), retry_at=60)
    assert scheduled(old, again).started_at is None  # an earlier release did not record it


def test_an_open_activity_is_drawn_as_queued_until_a_worker_has_it() -> None:
    span = scheduled()
    assert is_queued(span)
    (begun,) = with_starts([span], {"a": 40})
    assert (begun.started_at, is_queued(begun)) == (40, False)


def test_the_bar_of_an_activity_is_thin_while_it_waits() -> None:
    done = event("ActivityCompleted", 90, "a", result=1, attempt=1, started_at=50)
    output = StringIO()
    console = Console(file=output, width=120)
    console.print(timeline([scheduled(done)], 10, 90, 90))
    assert "┄" * 16 + "━" * 16 in output.getvalue()


def test_the_row_of_a_page_has_a_bar_for_the_queue_and_one_for_the_work() -> None:
    done = event("ActivityCompleted", 90, "a", result=1, attempt=1, started_at=50)
    span = scheduled(done)
    (strip,) = make_strips([span], Scale([span], 10, 90))
    assert strip.wait == Bar(0, 500)
    assert strip.bar == Bar(500, 500)


def test_a_wait_of_a_second_is_said_in_words() -> None:
    def note(started_at: int) -> str:
        done = event("ActivityCompleted", 9_000_000, "a", attempt=1, started_at=started_at)
        span = scheduled(done)
        (strip,) = make_strips([span], Scale([span], 10, 9_000_000))
        return strip.note

    assert note(2_000_010) == "2.0 s in the queue"
    assert note(900_000) == ""


def test_a_step_of_a_flow_waits_from_the_end_of_the_steps_before_it() -> None:
    def state(name: str, began: int, ended: int, *deps: str, **more: Any) -> FlowStepState:
        return FlowStepState(
            run_id=UUID(int=1),
            step=name,
            kind="single",
            deps=deps,
            status="completed",
            started_at=began,
            ended_at=ended,
            **more,
        )

    log = [event("WorkflowStarted", 1_000_000)]
    a, b = state("a", 3_000_000, 4_000_000), state("b", 9_000_000, 9_500_000, "a", delay_seconds=2)
    spans = read_run_spans(record(kind="flow", started_at=1_000_000), log, [a, b])
    known = [(span.began_at // 10**6, (span.started_at or 0) // 10**6) for span in spans]
    assert known == [(1, 3), (6, 9)]
    late = read_run_spans(record(kind="flow", due_at=2_000_000, state="running"), log, [a])
    assert [(span.kind, span.began_at) for span in late] == [("delay", 0), ("step", 2_000_000)]


@pytest.mark.parametrize("then", ["sleep", "signal"])
async def test_a_deadline_that_the_code_has_left_is_not_open(then: str) -> None:
    """The log does not say when: at its last entry at the latest. What is waited for is open."""
    app = App("deadlines")

    @app.workflow
    async def order(ctx: Context) -> None:
        async with asyncio.timeout(3600):
            await ctx.wait_for_signal("packed")
        if then == "sleep":
            await asyncio.sleep(7200)
        await ctx.wait_for_signal("sent")

    def timers(found: Timeline) -> list[tuple[str, bool]]:
        return [(each.outcome, each.ended_at is None) for each in found.spans if each.due_at]

    async with Environment(app) as env:
        handle = await env.client.start(order)
        await env.advance(1)
        assert timers(await env.client.timeline(handle.run_id)) == [("open", True)]
        await handle.signal("packed")
        await env.advance(1)
        opened = [("open", True)] if then == "sleep" else []
        assert timers(await env.client.timeline(handle.run_id)) == [("dropped", False), *opened]
        because = (await env.client.why(handle.run_id)).because
        assert because.endswith("(timer#2)" if then == "sleep" else "signal 'sent'")
