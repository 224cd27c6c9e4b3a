"""The calls of a run as spans: each begins with one entry of its log, and ends with another."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast import events
from holdfast.definitions.entities import SentCall
from holdfast.insight.spans import (
    Details,
    Kind,
    Outcome,
    Span,
    error_text,
    failed_attempt,
    json_text,
    number_of,
    text_of,
)
from holdfast.types import JSON, Event

_OF_TASK: Final = re.compile(r"(?<![^/])([^/#]+)(#\d+)?/\1$")  # a call that gather has made a task


def sent_call(result: JSON) -> SentCall | None:
    """Return the call of an entity that a step has sent, None if its result is another one."""
    try:
        return msgspec.convert(result, SentCall)
    except msgspec.ValidationError:
        return None


class _Answer(msgspec.Struct):
    """What answers a call of an entity: a signal, or what a step has found."""

    update_id: str
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: Any = None


class Calls:
    """Adds a span for each activity, child, approval, webhook, update and call of an entity.

    It closes the span at the end of the call.
    """

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans
        self._open: dict[str, int] = {}  # key -> index in spans
        self._asked: dict[str, int] = {}  # id of a call of an entity -> index in spans
        self._waited_out: set[str] = set()  # keys of activities whose stop is waited for

    def read(self, event: Event, details: Details) -> None:
        """Read an event; those of other kinds change nothing."""
        key = event.key or ""
        match event.type:
            case events.ACTIVITY_SCHEDULED:
                self._begin(event, "activity", key, f"queue {text_of(details, 'queue')}")
                if details.get("on_cancel") == "wait":
                    self._waited_out.add(key)
            case events.CHILD_STARTED:
                run_id = text_of(details, "child_run_id")
                self._begin(event, "child", key, f"run {run_id}", run_id)
            case events.APPROVAL_REQUESTED:
                self._begin(event, "approval", text_of(details, "title"), "asks for a decision")
            case events.WEBHOOK_OPENED:
                self._begin(event, "webhook", key, "waits for a POST")
            case events.WEBHOOK_RECEIVED:
                self._end(event, "done", json_text(details.get("body")))
            case events.ACTIVITY_RETRY:
                self._retry(event, details)
            case events.UPDATE_ACCEPTED if key in self._open:
                index = self._open[key]
                self._spans[index] = replace(self._spans[index], started_at=event.at)
            case events.ACTIVITY_COMPLETED | events.CHILD_COMPLETED | events.UPDATE_COMPLETED:
                self._complete(event, details)
            case events.ACTIVITY_FAILED | events.CHILD_FAILED | events.UPDATE_REJECTED:
                self._fail(event, details)
            case events.ACTIVITY_CANCEL | events.APPROVAL_WITHDRAWN | events.WEBHOOK_CLOSED:
                if key not in self._waited_out:
                    self._end(event, "dropped", "no longer wanted")
            case events.APPROVAL_RESOLVED:
                self._decide(event, details)
            case _:
                pass

    def begin_update(self, event: Event, details: Details) -> None:
        """Read the signal that carries an update."""
        note = json_text(details.get("input"))
        self._begin(event, "update", text_of(details, "signal_name"), note)

    def begin_call(self, key: str, began_at: int, attempts: int, call: SentCall) -> None:
        """Read the step that has sent a call to an entity."""
        self._asked[call.call_id], run_id = len(self._spans), str(call.entity_run_id)
        label = _OF_TASK.sub(r"\1\2", key)
        span = Span("entity", label, began_at, None, "open", f"run {run_id}", attempts, key=key)
        self._spans.append(replace(span, target_run_id=run_id))

    def answer(self, at: int, payload: JSON) -> bool:
        """Close the call of an entity that this answers. Return False if it answers none."""
        if not self._asked:
            return False
        text = payload if isinstance(payload, str) else json_text(payload)
        try:
            found = msgspec.json.decode(text, type=_Answer)
        except msgspec.DecodeError:
            return False
        index = self._asked.pop(found.update_id, None)
        if index is None:
            return False
        result = "" if found.result is msgspec.UNSET else bytes(found.result).decode()
        note, outcome = error_text(found.error) or result, "failed" if found.error else "done"
        self._spans[index] = replace(self._spans[index], ended_at=at, outcome=outcome, note=note)
        return True

    def _begin(
        self, event: Event, kind: Kind, label: str, note: str, child_run_id: str = ""
    ) -> None:
        key = event.key or ""
        self._open[key] = len(self._spans)
        self._spans.append(
            Span(kind, label, event.at, None, "open", note, key=key, child_run_id=child_run_id)
        )

    def _retry(self, event: Event, details: Details) -> None:
        index, attempt = self._open.get(event.key or ""), failed_attempt(details, event.at)
        if index is not None:
            span = self._spans[index]
            failures = (*span.failures, attempt)
            started_at = span.started_at
            if attempt.number == 1:
                started_at = number_of(details, "started_at") or None
            self._spans[index] = replace(
                span, failures=failures, attempts=attempt.number, started_at=started_at
            )

    def _complete(self, event: Event, details: Details) -> None:
        if details.get("error") is not None:  # an update that was accepted, and failed
            self._fail(event, details)
            return
        result = details.get("output" if event.type == events.CHILD_COMPLETED else "result")
        self._end(event, "done", json_text(result), details)

    def _fail(self, event: Event, details: Details) -> None:
        status = text_of(details, "status").replace("_", " ")
        error = error_text(details.get("error"))
        note = error if status in ("", "failed") else f"{status}: {error}" if error else status
        if status == "refused" and (index := self._open.get(event.key or "")) is not None:
            # The run that there is has another starter.
            self._spans[index] = replace(self._spans[index], child_run_id="")
        self._end(event, "failed", note, details)

    def _decide(self, event: Event, details: Details) -> None:
        approved = details.get("approved") is True
        by, feedback = text_of(details, "by"), text_of(details, "feedback")
        note = "approved" if approved else "rejected"
        note += f" by {by}" if by else ""
        self._end(
            event, "done" if approved else "failed", f"{note}: {feedback}" if feedback else note
        )

    def _end(
        self, event: Event, outcome: Outcome, note: str, details: Details | None = None
    ) -> None:
        """Close a span; an end that comes after the run gave the call up is not shown."""
        index = self._open.pop(event.key or "", None)
        if index is not None:
            span = self._spans[index]
            attempts = number_of(details or {}, "attempt") or span.attempts
            started_at = span.started_at
            if started_at is None and attempts == 1:
                started_at = number_of(details or {}, "started_at") or None
            ended = replace(span, ended_at=event.at, outcome=outcome, note=note)
            self._spans[index] = replace(ended, attempts=attempts, started_at=started_at)
