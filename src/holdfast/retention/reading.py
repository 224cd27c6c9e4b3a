"""Runs as they stand in an archive: lines of JSON, read as the store's own values."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from holdfast.events import TOLD_BY_RUN
from holdfast.store.port.run_lines import (
    EventFields,
    RunFields,
    RunLine,
    StepFields,
    event_fields,
    json_raw,
    json_text,
    json_text_or_none,
    read_line,
)
from holdfast.types import EndStatus, Event, FlowShape, RunKind, RunRecord, Value, Wait
from holdfast.values.composing import compose, shaped
from holdfast.values.moments import maybe_datetime, maybe_micros, to_micros
from holdfast.values.names import split_name


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

    `retention_seconds` is how long it was kept in the database, None for no limit. `shape` is that
    of a flow's run, `clock_at` the moment at which the clock of a fork's code begins.
    """

    record: RunRecord
    events: list[Event]
    lines: tuple[str, ...]
    retention_seconds: float | None
    shape: FlowShape | None = None
    clock_at: int | None = None


def read_head(line: str) -> RunHead:
    """Return what an index keeps of a run, from its first line."""
    return msgspec.json.decode(line, type=_HeadLine).run


def read_archived(lines: Sequence[str], place: str) -> ArchivedRun:
    """Return a run of its lines; `place` is the archive. Raises ValueError for other lines."""
    first, *others = map(read_line, lines)
    if isinstance(first.run, UUID):
        raise ValueError(f"the first line of run {first.run} is missing")
    entries = [entry for line in (first, *others) for entry in line.events]
    record = _record(first.run, first, place)
    states = {state.step_slug: state for line in (first, *others) for state in line.states}
    return ArchivedRun(
        record=record,
        events=[_event(entry, record, states) for entry in entries],
        lines=tuple(lines),
        retention_seconds=first.retention_seconds,
        shape=first.shape,
        clock_at=maybe_micros(first.run.clock_at),
    )


def write_run(run: RunRecord, log: Sequence[Event], clock_at: int | None = None) -> str:
    """Return a workflow's run, ended or not, as the one line that `read_archived` reads."""
    fields = shaped(
        RunFields,
        run,
        name=run.full_name,
        input=json_raw(run.input),
        output=json_raw(run.output),
        error=json_raw(run.error),
        headers=None if run.headers is None else dict(run.headers),
        clock_at=maybe_datetime(clock_at),
        awaiting=() if run.wait is None else run.wait.awaiting,
    )
    line = RunLine(
        run=fields,
        has_output=run.output is not None,
        retention_seconds=run.retention_seconds,
        attributes=dict(run.attributes),
        events=[event_fields(_without_payload(event)) for event in log],
    )
    return msgspec.json.encode(line).decode()


def _without_payload(event: Event) -> Event:
    """Return an entry as readers get it, without what the row of its run has."""
    told = event.type in TOLD_BY_RUN
    return msgspec.structs.replace(event, details=None) if told else event


def _record(run: RunFields, line: RunLine, place: str) -> RunRecord:
    app, name = split_name(run.name)
    return compose(
        RunRecord,
        run,
        app=app,
        name=name,
        state=run.status,
        input=json_text(run.input),
        output=json_text(run.output) if line.has_output else None,
        error=json_text_or_none(run.error),
        retention_seconds=line.retention_seconds,
        created_at=to_micros(run.created_at),
        started_at=maybe_micros(run.started_at),
        due_at=maybe_micros(run.due_at),
        completed_at=maybe_micros(run.completed_at),
        deadline_at=maybe_micros(run.deadline_at),
        wait=Wait(None, run.awaiting, None, 0, 0, None) if run.awaiting else None,
        archive=place,
        attributes=line.attributes,
        build=None,  # no worker needs it any more
    )


def _event(entry: EventFields, run: RunRecord, states: dict[str, StepFields]) -> Event:
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
            details = json_text_or_none(entry.details)
    return Event(entry.event_type, entry.key, details, to_micros(entry.at))


def _told_by_step(state: StepFields) -> str:
    if not state.has_output or state.initial_tasks == 0:
        return f'{{"tasks":{state.initial_tasks}}}'
    return f'{{"output":{json_text(state.output)}}}'
