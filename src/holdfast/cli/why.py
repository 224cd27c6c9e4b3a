"""What a run is doing or waiting for, and what would move it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.cli.console import decoded
from holdfast.cli.explanation import Explanation
from holdfast.cli.spans import Span, error_chain, error_text, traceback_text
from holdfast.cli.surroundings import Surroundings
from holdfast.cli.why_messages import message_notes
from holdfast.cli.why_queued import explain_queued
from holdfast.cli.why_remote import count_open, remote_reasons
from holdfast.cli.wording import ago, length, moment, several
from holdfast.cli.workers_live import is_silent, thread_shortage
from holdfast.types import ANY_END, RunRecord, Wait

_INVALID_INPUT = "holdfast.errors.InvalidInput: "
_UPDATE = "update:"  # what an awaited update's name begins with


def explain(run: RunRecord, spans: Sequence[Span], around: Surroundings) -> Explanation:
    """Explain a run from its row, its spans, and what it depends on besides."""
    wait = run.wait
    if run.status != "running" or wait is None:
        return _ended(run, spans, around)
    found = _going(run, wait, spans, around)
    reasons = remote_reasons(run, spans, around)
    commands = dict.fromkeys([*found.commands, *(each.command for each in reasons if each.command)])
    details = (*found.details, *(each.text for each in reasons))
    return replace(found, details=details, commands=tuple(commands))


def _going(run: RunRecord, wait: Wait, spans: Sequence[Span], around: Surroundings) -> Explanation:
    if wait.stuck is not None:
        return _stuck(run, wait, wait.stuck, around)
    if wait.paused:
        return _paused(run, wait, spans, around.now)
    if wait.worker is not None:
        return _leased(run, wait, wait.worker, spans, around)
    if wait.visible_at is not None and wait.visible_at <= around.now:
        return explain_queued(run, wait, around)
    return _waiting(run, wait, spans, around.now)


def _ended(run: RunRecord, spans: Sequence[Span], around: Surroundings) -> Explanation:
    at = run.completed_at or run.created_at
    when = f"at {moment(at)}, {length(at - run.created_at)} after its start"
    match run.status:
        case "completed":
            return Explanation(run.state, f"it completed {when}", (f"output: {run.output}",))
        case "failed":
            return _failed(run, spans, around.retried_as, when)
        case "timed_out":
            return Explanation(run.state, f"it was ended at its deadline, {when}")
        case "continued":
            output = decoded(run.output)
            heir = output.get("run_id") if isinstance(output, dict) else None
            because = f"it continued as run {heir} {when}"
            return Explanation(run.state, because, (), (f"holdfast runs why {heir}",))
        case _:
            asked = [span for span in spans if span.kind in ("cancel", "end")]
            reasons = tuple(f"reason: {span.note}" for span in asked if span.note)
            return Explanation(run.state, f"it was {run.status} {when}", reasons)


def _failed(
    run: RunRecord, spans: Sequence[Span], retried_as: RunRecord | None, when: str
) -> Explanation:
    recorded = decoded(run.error)
    error = error_text(recorded)
    details = _failed_calls(spans, set(error_chain(recorded)))
    command = f"holdfast runs retry {run.run_id}"
    if retried_as is not None:
        details += (f"it was retried as run {retried_as.run_id}, which is {retried_as.state}",)
        command = f"holdfast runs why {retried_as.run_id}"
    elif not spans and error.startswith(_INVALID_INPUT):  # the same input would fail again
        command = f"holdfast runs fork {run.run_id} --index 1 --input '…'"
    because = f"it failed {when}: {error}"
    return Explanation(run.state, because, details, (command,), traceback_text(recorded))


def _failed_calls(spans: Sequence[Span], causes: set[str]) -> tuple[str, ...]:
    """Name the calls whose failures ended the run, not those that its code has handled."""
    return tuple(
        f"{span.kind} {span.label} failed"
        + ("" if span.kind == "child" else f" after {several(span.attempts, 'attempt')}")
        + f": {span.note}"
        for span in spans
        if span.kind in ("step", "activity", "child")
        and span.outcome == "failed"
        and span.note in causes
    )


def _stuck(run: RunRecord, wait: Wait, reason: str, around: Surroundings) -> Explanation:
    again = "soon" if wait.visible_at is None else ago(wait.visible_at, around.now)
    details = [f"it is tried again {again}; a worker with corrected code heals it"]
    commands = [f'holdfast runs terminate {run.run_id} --reason "…"']
    origin = around.origin
    if origin is not None:
        other = origin.input != run.input
        details.append(
            f"it is a fork of run {origin.run_id}: where "
            f"{'its changed input' if other else 'what was changed in it'} makes the code take "
            "another path than the log that it copied, fork from an earlier index"
        )
        again_from = f"holdfast runs fork {origin.run_id} --index 1"
        commands.insert(0, again_from + (" --input '…'" if other else ""))
    because = f"it cannot go on with the code that the workers have: {reason}"
    return Explanation(run.state, because, tuple(details), tuple(commands))


def _paused(run: RunRecord, wait: Wait, spans: Sequence[Span], now: int) -> Explanation:
    pause = next((span for span in reversed(spans) if span.kind == "pause"), None)
    because = "it is paused"
    if pause is not None:
        reason = f" ({pause.note})" if pause.note else ""
        because = f"it was paused {ago(pause.began_at, now)}{reason}"
    held = (f"worker {wait.worker} lets its running steps end",) if wait.worker else ()
    command = f"holdfast runs resume {run.run_id}"
    return Explanation(run.state, because, (*held, *_cancel_notes(spans)), (command,))


def _leased(
    run: RunRecord, wait: Wait, worker_id: str, spans: Sequence[Span], around: Surroundings
) -> Explanation:
    now, details = around.now, _cancel_notes(spans)
    backoff = _backoff(spans, now)
    if backoff is not None:
        details = (backoff, *details)
    if wait.attempts > 1:
        details += (f"it was claimed {wait.attempts} times since it last made progress",)
    holder = next((each for each in around.workers if each.worker_id == worker_id), None)
    if holder is None or is_silent(holder, now):
        heard = "is not signed on" if holder is None else f"was heard {ago(holder.heard_at, now)}"
        return Explanation(
            run.state,
            f"worker {worker_id} holds it and {heard}",
            ("another worker takes it over once that one counts as dead", *details),
        )
    if shortage := thread_shortage(holder):
        details = (shortage, *details)
    last = max((span.ended_at or span.began_at for span in spans), default=run.created_at)
    return Explanation(
        run.state,
        f"it runs on worker {worker_id}; the last entry in its log was made {ago(last, now)}",
        details,
        traceback=_last_failure(spans),
    )


def _last_failure(spans: Sequence[Span]) -> str:
    """Return the traceback of the attempt that failed last, of the calls that are retried."""
    failures = [span.failures[-1] for span in spans if span.outcome == "open" and span.failures]
    return max(failures, key=lambda failure: failure.at).traceback if failures else ""


def _backoff(spans: Sequence[Span], now: int) -> str | None:
    """Describe the steps that have failed and are to be tried again."""
    for span in spans:
        if span.kind == "step" and span.outcome == "open" and span.failures:
            last = span.failures[-1]
            at = last.retry_at or now
            when = "is being tried again" if at <= now else f"is tried again {ago(at, now)}"
            return f"step {span.label} {when}; attempt {last.number} failed: {last.error}"
    return None


def _cancel_notes(spans: Sequence[Span]) -> tuple[str, ...]:
    for span in spans:
        if span.kind == "cancel":
            note = f" ({span.note})" if span.note else ""
            return (f"a cancel was asked for at {moment(span.began_at)}{note}: it may clean up",)
    return ()


def _waiting(run: RunRecord, wait: Wait, spans: Sequence[Span], now: int) -> Explanation:
    at = wait.visible_at
    details = (*_cancel_notes(spans), *message_notes(wait, spans, now))
    until = "" if at is None else f"{moment(at, now)} ({ago(at, now)})"
    backoff = _backoff(spans, now)
    if backoff is not None:
        return Explanation(run.state, backoff, details, traceback=_last_failure(spans))
    if wait.awaiting:
        if at is not None:
            details = (f"without it, a timer goes off {until}", *details)
        commands = tuple(_tell_command(run, name) for name in wait.awaiting if name != ANY_END)
        return Explanation(run.state, f"it waits for {_awaited(wait, spans)}", details, commands)
    if at is None:
        return Explanation(
            run.state,
            "it waits for nothing that would come by itself",
            details,
            (f"holdfast runs cancel {run.run_id}",),
        )
    if run.started_at is None and not spans:
        return Explanation(run.state, f"its start is delayed until {until}", details)
    timers = [span.label for span in spans if span.kind == "timer" and span.outcome == "open"]
    by = f" ({timers[0]})" if len(timers) == 1 else ""
    return Explanation(run.state, f"it sleeps until {until}{by}", details)


def _awaited(wait: Wait, spans: Sequence[Span]) -> str:
    """Name what would wake a run: `2 activities, or signal 'packed', or update 'add'`."""
    updates = [name.removeprefix(_UPDATE) for name in wait.awaiting if name.startswith(_UPDATE)]
    signals = [name for name in wait.awaiting if name != ANY_END and not name.startswith(_UPDATE)]
    parts = [count_open(spans) or "what it asked others for"] if ANY_END in wait.awaiting else []
    for noun, names in (("signal", signals), ("update", updates)):
        if names:
            listed = " or ".join(map(repr, names))
            parts.append(f"{noun if len(names) == 1 else noun + 's'} {listed}")
    return ", or ".join(parts)


def _tell_command(run: RunRecord, name: str) -> str:
    if name.startswith(_UPDATE):
        return f"holdfast runs update {run.run_id} {name.removeprefix(_UPDATE)} '{{}}'"
    return f"holdfast runs signal {run.run_id} {name} '{{}}'"
