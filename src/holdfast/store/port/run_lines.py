"""The lines of JSON that runs are exported as, archived as and restored from.

`export_runs` writes them; the rows in them have the names that the columns have. Only the export of
one run may be of a run that has not ended.
"""

# No `from __future__ import annotations`: each process that starts would compile the texts.

from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from holdfast.types import AttributeValue, Event, FlowShape, RunKind, SkipReason, Status, StepStatus
from holdfast.values.moments import to_datetime

_NULL: Final = msgspec.Raw(b"null")


class RunFields(msgspec.Struct):
    """A row of `runs`; of one that has not ended, also what it waits for, as `Suspend` has it."""

    run_id: UUID
    name: str
    version: int
    queue: str
    priority: int
    status: Status
    created_at: datetime
    completed_at: datetime | None = None
    kind: RunKind = "workflow"
    key: str | None = None
    input: msgspec.Raw = _NULL
    output: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    parent_run_id: UUID | None = None
    parent_key: str | None = None
    parent_close: Literal["terminate", "cancel", "abandon"] | None = None
    tags: tuple[str, ...] = ()
    headers: dict[str, str] | None = None
    started_at: datetime | None = None
    due_at: datetime | None = None
    clock_at: datetime | None = None
    build: str | None = None
    deadline_at: datetime | None = None
    awaiting: tuple[str, ...] = ()


class EventFields(msgspec.Struct):
    """A row of `events`; `idx` is its place in the log."""

    event_type: str
    at: datetime
    key: str | None = None
    details: msgspec.Raw = _NULL
    idx: int | msgspec.UnsetType = msgspec.UNSET


class StepFields(msgspec.Struct):
    """A row of `step_states`; `has_output` tells an output null from none."""

    step_slug: str
    status: StepStatus
    deps_done: int
    has_output: bool = False
    initial_tasks: int | None = None
    remaining_tasks: int | None = None
    output: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    skip_reason: SkipReason | None = None
    attempts: int | None = None
    worker: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    failed_tasks: int | None = None


class ElementFields(msgspec.Struct):
    """A row of `step_tasks`."""

    step_slug: str
    task_index: int
    output: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL


class StreamFields(msgspec.Struct):
    """What is kept of a row of `streams`: all else follows from its chunks."""

    name: str
    base: int = 0


class ChunkFields(msgspec.Struct):
    """A row of `stream_chunks`."""

    name: str
    last_offset: int
    count: int
    key: str
    lease_no: int
    attempt: int
    closes: bool
    items: msgspec.Raw


class RunLine(msgspec.Struct):
    """A line. The first of a run has its row, and of a flow's run its shape; others have its id."""

    run: RunFields | UUID
    has_output: bool = False
    retention_seconds: float | None = None
    shape: FlowShape | None = None  # archives of before lack it
    attributes: dict[str, AttributeValue] = {}
    events: list[EventFields] = []
    states: list[StepFields] = []
    elements: list[ElementFields] = []
    streams: list[StreamFields] = []  # in the first line
    chunks: list[ChunkFields] = []


read_line: Final = msgspec.json.Decoder(RunLine).decode


def event_fields(event: Event, idx: int | msgspec.UnsetType = msgspec.UNSET) -> EventFields:
    """Return an entry of a log as a line has it."""
    return EventFields(event.type, to_datetime(event.at), event.key, json_raw(event.details), idx)


def json_raw(text: str | None) -> msgspec.Raw:
    """Return JSON text as a value of a line; None as null."""
    return _NULL if text is None else msgspec.Raw(text.encode())


def json_text(value: msgspec.Raw) -> str:
    """Return a value of a line as JSON text."""
    return bytes(value).decode()


def json_text_or_none(value: msgspec.Raw) -> str | None:
    """Return a value as JSON text; None for null, which stands for a value that is not there."""
    text = json_text(value)
    return None if text == "null" else text
