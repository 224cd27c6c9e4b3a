"""What a run asks of others, as spans: activities, children, approvals; and updates, of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
    text_of,
)
from holdfast.types import Event


@dataclass(slots=True)
class RemoteReader:
    """Adds to `spans` what begins, and closes it when its end is read."""

    spans: list[Span]
    open: dict[str, int] = field(default_factory=dict[str, int])  # key -> place in spans

    def read(self, event: Event, details: Details) -> None:
        """Read an event; those of other kinds change nothing."""
        key = event.key or ""
        match event.type:
            case "ActivityScheduled":
                note = f"queue {text_of(details, 'queue')}"
                self._begin(event, "activity", key, note)
            case "ChildStarted":
                run_id = text_of(details, "child_run_id")
                self._begin(event, "child", key, f"run {run_id}", run_id)
            case "ApprovalRequested":
                self._begin(event, "approval", text_of(details, "title"), "asks for a decision")
            case "ActivityRetryScheduled":
                self._retry(key, failed_attempt(details, event.at))
            case "ActivityCompleted" | "ChildCompleted" | "UpdateCompleted":
                self._complete(event, details)
            case "ActivityFailed" | "ChildFailed" | "UpdateRejected":
                self._fail(event, details)
            case "ActivityCancelRequested" | "ApprovalWithdrawn":
                self._end(event, "dropped", "no longer wanted")
            case "ApprovalResolved":
                self._decide(event, details)
            case _:
                pass

    def begin_update(self, event: Event, details: Details) -> None:
        """Read the signal that an update comes as."""
        note = json_text(details.get("input"))
        self._begin(event, "update", text_of(details, "signal_name"), note)

    def _begin(
        self, event: Event, kind: Kind, label: str, note: str, child_run_id: str = ""
    ) -> None:
        key = event.key or ""
        self.open[key] = len(self.spans)
        self.spans.append(
            Span(kind, label, event.at, None, "open", note, key=key, child_run_id=child_run_id)
        )

    def _retry(self, key: str, attempt: Attempt) -> None:
        place = self.open.get(key)
        if place is not None:
            span = self.spans[place]
            failures = (*span.failures, attempt)
            self.spans[place] = replace(span, failures=failures, attempts=attempt.number)

    def _complete(self, event: Event, details: Details) -> None:
        if details.get("error") is not None:  # an update that was accepted, and failed
            self._fail(event, details)
            return
        result = details.get("output" if event.type == "ChildCompleted" else "result")
        self._end(event, "done", json_text(result), details)

    def _fail(self, event: Event, details: Details) -> None:
        status = text_of(details, "status").replace("_", " ")
        error = error_text(details.get("error"))
        note = error if status in ("", "failed") else f"{status}: {error}" if error else status
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
        """Close what began; an end that comes after it was given up says nothing new."""
        place = self.open.pop(event.key or "", None)
        if place is not None:
            span = self.spans[place]
            attempts = number_of(details or {}, "attempt") or span.attempts
            self.spans[place] = replace(
                span, ended_at=event.at, outcome=outcome, note=note, attempts=attempts
            )
