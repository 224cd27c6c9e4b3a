"""The spans of time that a run's log is shown as, and how errors and details are written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.insight.wording import length
from holdfast.types import JSON, ErrorInfo, OpenActivity, RunRecord, Value

Kind: TypeAlias = Literal[
    "step",
    "activity",
    "child",
    "entity",
    "approval",
    "webhook",
    "timer",
    "signal",
    "sent",
    "update",
    "value",
    "patch",
    "pause",
    "change",
    "cancel",
    "lost",
    "delay",
    "queue",
    "fork",
    "end",
]
Outcome: TypeAlias = Literal["done", "failed", "open", "dropped", "noted"]
Details: TypeAlias = Mapping[str, JSON]


class Attempt(Value, frozen=True):
    """A failed attempt of a step or an activity. `retry_at` is None if it was the last.

    `traceback` is the recorded one, empty if there is none. Moments are in microseconds since
    1970 UTC.
    """

    number: int
    at: int
    error: str
    retry_at: int | None
    traceback: str = ""


class Span(Value, frozen=True):
    """Something that happened in a run. A moment has the same beginning and end.

    `outcome` is `open` if the span has no end yet, `dropped` if the run no longer needed it, and
    `noted` for a moment. `note` is its result, error or reason. `key` is that of the call.
    `due_at` is when a timer fires. `started_at` is when a worker first took an activity or a step
    of a flow, or when the handler of an update began: since `began_at` it had waited. None if that
    is not known or did not happen. `child_run_id` names the run that a child is, empty
    if it was refused, `origin_run_id` the run that a fork was made of, `target_run_id` the run that
    a signal or a call of an entity was sent to. Moments are in microseconds since 1970 UTC.
    """

    kind: Kind
    label: str
    began_at: int
    ended_at: int | None
    outcome: Outcome
    note: str = ""
    attempts: int = 1
    failures: tuple[Attempt, ...] = ()
    key: str = ""
    due_at: int | None = None
    started_at: int | None = None
    child_run_id: str = ""
    origin_run_id: str = ""
    target_run_id: str = ""


def is_queued(span: Span) -> bool:
    """Return True if all of a span is time in a queue: of a run, or of an activity until now."""
    is_open = span.outcome == "open" and span.started_at is None and not span.failures
    return span.kind == "queue" or (span.kind == "activity" and is_open)


def is_external(found: OpenActivity, span: Span | None, now: int) -> bool:
    """Return True if an activity waits to be completed from outside, as its open span tells."""
    if found.worker is not None or found.visible_at is None:
        return found.worker is None
    failed = span.failures[-1].number if span is not None and span.failures else 0
    return found.stuck is None and found.visible_at > now and found.attempts > failed


def queue_text(span: Span) -> str:
    """Say how long an activity or a step waited in a queue; empty for less than 1 s."""
    if span.kind == "activity" and is_queued(span):
        return "no worker has taken it"
    if span.started_at is None or span.started_at - span.began_at < 1_000_000:
        return ""
    return f"{length(span.started_at - span.began_at)} in the queue"


def recorded_text(key: str) -> str:
    """Say what code has recorded of itself under a key; nothing of calls that have spans."""
    if key.startswith("begun:"):
        return ""
    if key.startswith("caught:"):
        return "the code handled an exception that it had raised itself"
    name = key.rpartition("/")[2]
    if name.startswith("misfit:"):
        return "the value does not fit the type that the code declares"
    raised = name.partition(":")[0] == "raised"
    return "the code raised" if raised else "changed code takes its new path"


class Timeline(Value, frozen=True):
    """What happened in a run: its spans, ordered by their beginnings.

    `began_at` is when the run was created, `ended_at` when it ended (None before), and `now` the
    database's time of the answer, all in microseconds since 1970 UTC.
    """

    run_id: UUID
    began_at: int
    ended_at: int | None
    now: int
    spans: tuple[Span, ...]


def error_text(value: JSON) -> str:
    """Return a recorded error as one line."""
    if not isinstance(value, dict):
        return ""
    kind = text_of(value, "kind").removeprefix("builtins.")
    message = text_of(value, "message")
    return f"{kind}: {message}" if message else kind


def error_chain(value: JSON) -> Iterator[str]:
    """Yield a recorded error and its causes, a line each."""
    while isinstance(value, dict):
        yield error_text(value)
        value = value.get("cause")


def traceback_text(value: JSON) -> str:
    """Return the tracebacks of a recorded error, empty if they say no more than its message."""
    if not isinstance(value, dict):
        return ""
    text = text_of(value, "traceback").strip()
    if text in ("", error_text(value).strip()):  # of a flow's step: its cause is the user's error
        return traceback_text(value.get("cause"))
    try:
        return msgspec.convert(value, ErrorInfo).format().rstrip()
    except msgspec.ValidationError:  # an error that another program recorded
        return text_of(value, "traceback").rstrip()


def read_json(text: str | None) -> JSON:
    """Decode JSON text to show it; None if there is none.

    A number that Python has no value for, such as 1e400, remains text: it is encoded as it was.
    """
    if text is None:
        return None
    value: JSON
    try:
        value = msgspec.json.decode(text)
    except msgspec.ValidationError:  # the only way in which JSON does not fit: a number
        value = json.loads(text, parse_float=_number, parse_int=_number)
    return value


def _number(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.ValidationError:
        return msgspec.Raw(text.encode())


def read_details(details: str | None) -> Details:
    """Decode the details of an event; empty if they are not an object."""
    value = read_json(details or None)
    return value if isinstance(value, dict) else {}


def json_text(value: JSON) -> str:
    """Return a value as JSON text, empty for None."""
    return "" if value is None else msgspec.json.encode(value).decode()


def text_of(details: Details, name: str) -> str:
    """Return a text of an event's details, empty if there is none of that name."""
    value = details.get(name)
    return value if isinstance(value, str) else ""


def number_of(details: Details, name: str) -> int:
    """Return a number of an event's details, 0 if there is none of that name."""
    value = details.get(name)
    return int(value) if isinstance(value, int | float) else 0


def failed_attempt(details: Details, at: int) -> Attempt:
    """Return the failed attempt that a retry event records."""
    return Attempt(
        number_of(details, "attempt"),
        at,
        error_text(details.get("error")),
        number_of(details, "retry_at"),
        traceback_text(details.get("error")),
    )


def has_begun(run: RunRecord, spans: Sequence[Span]) -> bool:
    """Return True if a worker has claimed a run, or something of a flow has happened.

    Others may have written to its log before: signals, pauses, changes of its start.
    """
    if run.kind == "flow":
        return any(span.kind not in ("change", "pause") for span in spans)
    return run.started_at is not None
