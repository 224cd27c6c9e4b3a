"""The JSON shapes of runs and logs: one for `--json`, the HTTP server and tools.

Moments are RFC 3339 in UTC, lengths of time are seconds, and payloads are JSON, not text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.codec import decode_error, raw
from holdfast.events import WEBHOOK_OPENED
from holdfast.insight.folding import Fold
from holdfast.insight.spans import Attempt, Kind, Outcome, Span
from holdfast.insight.traces import find_trace
from holdfast.types import (
    AttributeValue,
    ClippedEvent,
    Event,
    LoggedEvent,
    RunKind,
    RunRecord,
    State,
    Status,
    Wait,
)
from holdfast.values.composing import shaped
from holdfast.values.moments import to_datetime

_URL: Final = re.compile(r'"url":\s*"[^"]*"?')  # of details that may be cut within it

LARGEST_SHOWN: Final = 64 * 1024
"""Bytes of a payload that is shown within a run; a larger one is asked for alone."""


class WaitShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a run that has not ended is doing."""

    visible_at: datetime | None
    awaiting: tuple[str, ...]
    worker: str | None
    attempts: int
    lease_no: int
    stuck: str | None
    paused: bool


class ErrorHead(msgspec.Struct, frozen=True):
    """An error without its traceback."""

    kind: str
    message: str


class LastFailureHead(msgspec.Struct, frozen=True, kw_only=True):
    """The last attempt that failed and is retried: of a run that has continued, itself.

    `number` counts from 1, of `attempts`, null for no limit.
    """

    number: int
    attempts: int | None
    error: ErrorHead


class _RunFields(msgspec.Struct, frozen=True, kw_only=True):
    run_id: UUID
    kind: RunKind
    app: str
    name: str
    version: int
    build: str | None
    key: str | None
    queue: str
    priority: int
    status: Status
    state: State
    tags: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]
    created_at: datetime
    due_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    deadline_at: datetime | None
    wait: WaitShape | None
    parent_run_id: UUID | None
    parent_key: str | None
    last_failure: LastFailureHead | None


class RunHead(_RunFields, frozen=True, kw_only=True):
    """A run in a list: without payloads."""

    error: ErrorHead | None


class RunShape(_RunFields, frozen=True, kw_only=True):
    """A run with its payloads.

    A payload that is too large to be shown here is null, and its size is given instead.
    """

    input: msgspec.Raw | None
    output: msgspec.Raw | None
    error: msgspec.Raw | None
    headers: Mapping[str, str] | None
    retention_seconds: float | None
    archive: str | None
    trace_id: str | None
    input_bytes: int | msgspec.UnsetType = msgspec.UNSET
    output_bytes: int | msgspec.UnsetType = msgspec.UNSET


class EventShape(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a run's log. Details that are left out have their size instead."""

    idx: int
    type: str
    key: str | None
    details: msgspec.Raw | None
    at: datetime
    details_bytes: int | msgspec.UnsetType = msgspec.UNSET


def run_head(run: RunRecord) -> RunHead:
    """Return a run for a list."""
    return shaped(
        RunHead,
        run,
        error=None if run.error is None else _error_head(run.error),
        wait=_wait(run.wait),
        last_failure=_last_failure(run),
    )


def _error_head(text: str) -> ErrorHead:
    error = decode_error(text)
    return ErrorHead(error.kind, error.message)


def _last_failure(run: RunRecord) -> LastFailureHead | None:
    last = run.last_failure
    if last is None:
        return None
    return LastFailureHead(
        number=last.number, attempts=last.attempts, error=_error_head(last.error)
    )


def run_shape(run: RunRecord, largest: int | None = None) -> RunShape:
    """Return a run with its payloads, those of more than `largest` bytes as their size."""
    input_text, input_bytes = _clip(run.input, largest)
    output_text, output_bytes = _clip(run.output, largest)
    trace = find_trace(run)
    return shaped(
        RunShape,
        run,
        input=input_text,
        output=output_text,
        error=raw(run.error),
        wait=_wait(run.wait),
        trace_id=None if trace is None else trace.trace_id,
        last_failure=_last_failure(run),
        input_bytes=input_bytes,
        output_bytes=output_bytes,
    )


def event_shape(entry: LoggedEvent) -> EventShape:
    """Return an entry of a log, whole."""
    return _event_shape(entry.idx, entry.event)


def clipped_shape(entry: ClippedEvent, largest: int) -> EventShape:
    """Return an entry of a page of a log, details of more than `largest` bytes as their size."""
    return _event_shape(entry.idx, entry.event, entry.size if entry.size > largest else None)


def _event_shape(idx: int, event: Event, cut: int | None = None) -> EventShape:
    return EventShape(
        idx=idx,
        type=event.type,
        key=event.key,
        details=None if cut is not None else raw(shown_details(event)),
        at=to_datetime(event.at),
        details_bytes=msgspec.UNSET if cut is None else cut,
    )


def shown_details(event: Event) -> str | None:
    """Return the details of an event for people: without the URL of a webhook.

    A program that has it can post to it, and who may read a run may not do that.
    """
    if event.type != WEBHOOK_OPENED or event.details is None:
        return event.details
    return _URL.sub('"url":"(hidden)"', event.details)


def _clip(
    text: str | None, largest: int | None
) -> tuple[msgspec.Raw | None, int | msgspec.UnsetType]:
    payload = raw(text)
    if payload is None or largest is None or len(bytes(payload)) <= largest:
        return payload, msgspec.UNSET
    return None, len(bytes(payload))


def _wait(wait: Wait | None) -> WaitShape | None:
    return None if wait is None else shaped(WaitShape, wait)


class FailureShape(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt; `retry_at` is null if it was the last."""

    number: int
    at: datetime
    error: str
    retry_at: datetime | None


class StepShape(msgspec.Struct, frozen=True, kw_only=True):
    """A step or a call of a run, or a step of a flow: how it ended, or what it waits for.

    `outcome` is `open` until it has ended. Of a flow's step it is the step's state.
    """

    key: str
    kind: str
    outcome: str
    attempts: int
    started_at: datetime | None
    ended_at: datetime | None
    result: msgspec.Raw | None = None
    error: str | None = None
    failures: tuple[FailureShape, ...] = ()
    worker: str | None = None
    child_run_id: str | None = None


class SpanShape(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a run. A moment has the same beginning and end.

    With a `count` it is many similar spans that are shown as one. Kind `queue` is the time until a
    worker took the run first. An activity, or a step of a flow, waited in a queue from `began_at`
    until `started_at`.
    """

    kind: Kind
    label: str
    key: str
    outcome: Outcome
    began_at: datetime
    ended_at: datetime | None
    due_at: datetime | None
    started_at: datetime | None
    note: str
    attempts: int
    failures: tuple[FailureShape, ...]
    child_run_id: str
    origin_run_id: str
    target_run_id: str
    count: int = 1


class TimelineShape(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a run, ordered by beginning; `now` is the database's time."""

    run_id: UUID
    began_at: datetime
    ended_at: datetime | None
    now: datetime
    spans: list[SpanShape]


S = TypeVar("S", bound=msgspec.Struct)


def span_shape(span: Span, count: int = 1) -> SpanShape:
    """Return a span."""
    return shaped(SpanShape, span, failures=failure_shapes(span.failures), count=count)


def failure_shapes(failures: Sequence[Attempt]) -> tuple[FailureShape, ...]:
    """Return failed attempts."""
    return tuple(shaped(FailureShape, each) for each in failures)


def line_shape(line: Span | Fold) -> SpanShape:
    """Return a line of a timeline: a span, or many similar ones as one."""
    if isinstance(line, Fold):
        return span_shape(replace(line.together(), label=line.label), len(line.spans))
    return span_shape(line)
