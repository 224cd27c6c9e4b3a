"""What a run waits for: messages, calls, a timer, the next attempt of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.insight.actions import Action
from holdfast.insight.serving import live_workers, serves
from holdfast.insight.spans import Span, error_text, has_begun, read_json, traceback_text
from holdfast.insight.why.calls import count_open
from holdfast.insight.why.explanation import Explanation, explanation
from holdfast.insight.why.surroundings import Surroundings
from holdfast.insight.wording import ago, failed_times, moment
from holdfast.types import ANY_END, ANY_UPDATE, UPDATE_REPLY, RunRecord, Wait, awaits_update
from holdfast.values.patterns import pattern_of

_MESSAGES = ("signal", "update", "pause")
_UPDATE = "update:"  # the beginning of the name of an awaited update


def explain_waiting(
    run: RunRecord, wait: Wait, spans: Sequence[Span], around: Surroundings
) -> Explanation:
    """Explain a run that no worker needs to take now."""
    at, now = wait.visible_at, around.now
    details = (*cancel_notes(spans), *_unread_messages(wait, spans, now))
    until = "" if at is None else f"{moment(at, now)} ({ago(at, now)})"
    backoff = describe_backoff(spans, now)
    if backoff is not None:  # the next attempt has the code of the workers that live then
        return explanation(run, backoff, details, traceback=last_traceback(spans))
    details = (*details, *_newer_code(run, spans, around))
    if wait.awaiting:
        if at is not None:
            details = (f"without it, a timer fires {until}", *details)
        unsent = (ANY_END, ANY_UPDATE, UPDATE_REPLY)
        names = (each for each in wait.awaiting if each not in unsent and pattern_of(each) is None)
        actions = tuple(_send(run, name) for name in names)
        return explanation(run, f"it waits for {_awaited(wait, spans)}", details, actions)
    if at is None:
        because = "it waits for nothing that would come by itself"
        return explanation(run, because, details, (Action("cancel", run.run_id),))
    if run.started_at is None and run.last_failure is not None:
        error = read_json(run.last_failure.error)
        because = f"it {failed_times(run)}, and is tried again at {until}: {error_text(error)}"
        return explanation(run, because, details, traceback=traceback_text(error))
    if run.started_at is None and not has_begun(run, spans):
        return explanation(run, f"its start is delayed until {until}", details)
    timers = [span.label for span in spans if span.kind == "timer" and span.outcome == "open"]
    by = f" ({timers[0]})" if len(timers) == 1 else ""
    return explanation(run, f"it sleeps until {until}{by}", details)


def _newer_code(run: RunRecord, spans: Sequence[Span], around: Surroundings) -> Iterator[str]:
    """Say that the code of no live worker has been asked if it still waits."""
    workers = [each for each in live_workers(around.workers, around.now) if serves(each, run)]
    since = max((_last(span) for span in spans if span.kind not in _MESSAGES), default=0)
    begun = run.started_at
    if begun and workers and all(each.started_at > max(since, begun) for each in workers):
        yield (
            "the workers that serve it started after it began to wait: if this wait was removed "
            "from the code, pause and resume the run, and it continues with their code"
        )


def describe_backoff(spans: Sequence[Span], now: int) -> str | None:
    """Return a sentence about the first step that has failed and is tried again, else None."""
    for span in spans:
        if span.kind == "step" and span.outcome == "open" and span.failures:
            last = span.failures[-1]
            at = last.retry_at or now
            when = "is being tried again" if at <= now else f"is tried again {ago(at, now)}"
            return f"step {span.label} {when}; attempt {last.number} failed: {last.error}"
    return None


def last_traceback(spans: Sequence[Span]) -> str:
    """Return the traceback of the newest failed attempt of the calls that are tried again."""
    failures = [span.failures[-1] for span in spans if span.outcome == "open" and span.failures]
    return max(failures, key=lambda failure: failure.at).traceback if failures else ""


def cancel_notes(spans: Sequence[Span]) -> tuple[str, ...]:
    """Return a sentence about the cancel that was requested, if one was."""
    for span in spans:
        if span.kind == "cancel":
            note = f" ({span.note})" if span.note else ""
            return (f"a cancel was requested at {moment(span.began_at)}{note}: it may clean up",)
    return ()


def _awaited(wait: Wait, spans: Sequence[Span]) -> str:
    """Return what would wake a run: `2 activities, or signal 'packed', or update 'add'`."""
    if ANY_UPDATE in wait.awaiting:
        return "a call of one of its methods"
    updates = [name.removeprefix(_UPDATE) for name in wait.awaiting if name.startswith(_UPDATE)]
    others = [name for name in wait.awaiting if name != ANY_END and not name.startswith(_UPDATE)]
    signals = [name for name in others if pattern_of(name) is None and name != UPDATE_REPLY]
    events = [pattern for name in others if (pattern := pattern_of(name)) is not None]
    parts = [count_open(spans) or "the end of a call"] if ANY_END in wait.awaiting else []
    if UPDATE_REPLY in others:
        parts.append("the answer of an entity")
    for noun, names in (("event", events), ("signal", signals), ("update", updates)):
        if names:
            listed = " or ".join(map(repr, names))
            parts.append(f"{noun if len(names) == 1 else noun + 's'} {listed}")
    return ", or ".join(parts)


def _send(run: RunRecord, name: str) -> Action:
    if name.startswith(_UPDATE):
        return Action("update", run.run_id, name.removeprefix(_UPDATE))
    return Action("signal", run.run_id, name)


def _unread_messages(wait: Wait, spans: Sequence[Span], now: int) -> Iterator[str]:
    """Name each update that has not begun, and each signal of a name that is not waited for.

    A log does not tell if a signal was taken. A signal that is followed by anything but
    messages may have been, and is left out.
    """
    done_at = max((_last(span) for span in spans if span.kind not in _MESSAGES), default=0)
    came: dict[tuple[str, str], list[int]] = {}
    for span in spans:
        if span.kind == "update" and span.outcome == "open":
            if span.started_at is None and not awaits_update(wait.awaiting, span.label):
                came.setdefault((span.kind, span.label), []).append(span.began_at)
        elif span.kind == "signal" and span.began_at >= done_at and span.label not in wait.awaiting:
            came.setdefault((span.kind, span.label), []).append(span.began_at)
    updates = [span for span in spans if span.kind == "update" and span.outcome == "open"]
    begun = sorted({repr(span.label) for span in updates if span.started_at is not None})
    busy = f" (under way: {', '.join(begun)})" if begun else ""
    for (kind, name), moments in came.items():
        when = ago(moments[-1], now)
        if (pattern := pattern_of(name)) is not None:
            kind, name = "event", pattern
        what = f"{kind} {name!r} came {when}"
        if len(moments) > 1:
            what = f"{len(moments):,} {kind}s {name!r} came, the last {when}"
        if kind == "update":
            yield f"{what}: no handler serves it now: it waits until one does{busy}"
        else:
            yield f"{what}: nothing waits for this name now; an unread {kind} is kept"


def _last(span: Span) -> int:
    return span.began_at if span.ended_at is None else span.ended_at
