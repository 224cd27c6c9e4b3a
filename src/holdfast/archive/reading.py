"""Runs as they stand in an archive: lines of JSON, read as the store's own values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from holdfast.moments import to_micros
from holdfast.names import split_name
from holdfast.types import EndStatus, Event, RunKind, RunRecord, Value

_NULL: Final = msgspec.Raw(b"null")


class _Run(msgspec.Struct):
    """A row of `runs`, as the database writes it."""

    run_id: UUID
    name: str
    version: int
    queue: str
    priority: int
    status: EndStatus
    created_at: datetime
    completed_at: datetime
    kind: RunKind = "workflow"
    key: str | None = None
    input: msgspec.Raw = _NULL
    output: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    parent_run_id: UUID | None = None
    parent_key: str | None = None
    tags: tuple[str, ...] = ()
    headers: dict[str, str] | None = None
    started_at: datetime | None = None
    deadline_at: datetime | None = None


class _Entry(msgspec.Struct):
    """A row of `events`."""

    event_type: str
    at: datetime
    key: str | None = None
    details: msgspec.Raw = _NULL


class _State(msgspec.Struct):
    """What a line of a log tells of a row of `step_states`."""

    step_slug: str
    has_output: bool = False
    output: msgspec.Raw = _NULL
    initial_tasks: int | None = None


class _FirstLine(msgspec.Struct):
    run: _Run
    has_output: bool = False
    retention_seconds: float | None = None
    events: list[_Entry] = []
    states: list[_State] = []


class _NextLine(msgspec.Struct):
    events: list[_Entry] = []


class RunHead(msgspec.Struct):
    """What an index has of a run."""

    run_id: UUID
    name: str
    status: EndStatus
    created_at: datetime
    completed_at: datetime
    kind: RunKind = "workflow"
    key: str | None = None


class _HeadLine(msgspec.Struct):
    run: RunHead


class ArchivedRun(Value, frozen=True, kw_only=True):
    """A run of an archive: its row, its log, and the lines that it was written as.

    `retention_seconds` is how long it was kept in the database, None for no limit.
    """

    record: RunRecord
    events: list[Event]
    lines: tuple[str, ...]
    retention_seconds: float | None


def read_head(line: str) -> RunHead:
    """Return what an index keeps of a run, from its first line."""
    return msgspec.json.decode(line, type=_HeadLine).run


def read_archived(lines: Sequence[str], place: str) -> ArchivedRun:
    """Return a run of its lines; `place` is the archive."""
    first = msgspec.json.decode(lines[0], type=_FirstLine)
    entries = list(first.events)
    for line in lines[1:]:
        entries += msgspec.json.decode(line, type=_NextLine).events
    record = _record(first, place)
    states = {state.step_slug: state for state in first.states}
    return ArchivedRun(
        record=record,
        events=[_event(entry, record, states) for entry in entries],
        lines=tuple(lines),
        retention_seconds=first.retention_seconds,
    )


def _record(line: _FirstLine, place: str) -> RunRecord:
    run = line.run
    app, name = split_name(run.name)
    return RunRecord(
        run_id=run.run_id,
        kind=run.kind,
        app=app,
        name=name,
        version=run.version,
        key=run.key,
        queue=run.queue,
        priority=run.priority,
        status=run.status,
        state=run.status,
        input=_given(run.input),
        output=_given(run.output) if line.has_output else None,
        error=_text(run.error),
        tags=run.tags,
        headers=run.headers,
        retention_seconds=line.retention_seconds,
        created_at=to_micros(run.created_at),
        started_at=None if run.started_at is None else to_micros(run.started_at),
        completed_at=to_micros(run.completed_at),
        deadline_at=None if run.deadline_at is None else to_micros(run.deadline_at),
        wait=None,
        parent_run_id=run.parent_run_id,
        parent_key=run.parent_key,
        archive=place,
    )


def _event(entry: _Entry, run: RunRecord, states: dict[str, _State]) -> Event:
    """Return an entry of a log, filled in from where its values stand."""
    match entry.event_type:
        case "WorkflowStarted":
            details = run.input
        case "WorkflowCompleted":
            details = run.output
        case "WorkflowFailed":
            details = run.error
        case "FlowStepCompleted":
            state = states.get(entry.key or "")
            details = None if state is None else _told_by_step(state)
        case _:
            details = _text(entry.details)
    return Event(entry.event_type, entry.key, details, to_micros(entry.at))


def _told_by_step(state: _State) -> str:
    if not state.has_output or state.initial_tasks == 0:
        return f'{{"tasks":{state.initial_tasks}}}'
    return f'{{"output":{_given(state.output)}}}'


def _given(value: msgspec.Raw) -> str:
    return bytes(value).decode()


def _text(value: msgspec.Raw) -> str | None:
    """Return JSON text; None for null, as which a value that is not there was written."""
    text = _given(value)
    return None if text == "null" else text
