"""Archives: choose ended runs, read all of them, delete them; take them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from holdfast.errors import InvalidInput
from holdfast.store.memory.clock import to_micros as seconds_to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.flows.rows import shape_had
from holdfast.store.memory.payloads import check_seconds
from holdfast.store.memory.retention import check_batch, due_runs, keep_runs
from holdfast.store.memory.rows import EventRow, Parent, RunRow, StepRow
from holdfast.store.memory.streams import restore_streams, streams_of
from holdfast.store.memory.tables import Tables
from holdfast.store.port.run_lines import (
    ElementFields,
    RunFields,
    RunLine,
    StepFields,
    event_fields,
    json_raw,
    json_text,
    json_text_or_none,
    read_line,
)
from holdfast.types import Event, ExportedRuns, LeasedRun, LeasedRuns, NewRun, Restoring
from holdfast.values.composing import compose
from holdfast.values.moments import maybe_datetime, maybe_micros, to_datetime, to_micros


class MemoryArchives(Part):
    async def lease_due_runs(
        self, *, limit: int = 1000, rows: int = 20_000, lease_seconds: float = 600.0
    ) -> LeasedRuns:
        async with self._transaction() as (tables, now):
            check_batch(limit, rows)
            due = due_runs(tables, now, limit, rows, None)
            kept = keep_runs(tables, now, due)
            leased: list[LeasedRun] = []
            for run_id in sorted(set(due) - kept):
                run = tables.runs[run_id]
                run.delete_after = now + seconds_to_micros(lease_seconds)
                assert run.completed_at is not None
                leased.append(LeasedRun(run_id, run.completed_at, 1 + len(tables.logs[run_id])))
            return LeasedRuns(leased, bool(due_runs(tables, now, 1, rows, None)))

    async def export_runs(self, afters: Mapping[UUID, str | None]) -> ExportedRuns:
        async with self._transaction() as (tables, _):
            there = [
                run_id
                for run_id in afters
                if run_id in tables.runs and tables.runs[run_id].status != "running"
            ]
            lines = {run_id: _line(tables, run_id) for run_id in there}
            return ExportedRuns(lines, {}, {run_id: _labels(tables, run_id) for run_id in there})

    async def delete_archived(
        self, runs: Sequence[LeasedRun], *, rows: int = 20_000
    ) -> tuple[int, list[UUID]]:
        async with self._transaction() as (tables, now):
            check_batch(1, rows)
            there = [
                run.run_id
                for run in runs
                if run.run_id in tables.runs
                and tables.runs[run.run_id].completed_at == run.completed_at
                and run.labels in (None, _labels(tables, run.run_id))
            ]
            gone = set(there) - keep_runs(tables, now, there)
            tables.delete(gone)
            return len(gone), []

    async def restore_run(self, lines: Sequence[str], *, retention_seconds: float) -> Restoring:
        async with self._transaction() as (tables, now):
            check_seconds(retention_seconds)
            read = [read_line(line) for line in lines]
            if not read or isinstance(read[0].run, UUID):
                raise InvalidInput("the first line of a run has no run")
            run = read[0].run
            if run.status == "running":
                raise InvalidInput("the first line has no run that has ended")
            if run.run_id in tables.runs:
                return "exists"
            row = _run_row(run, read[0])
            row.delete_after = now + seconds_to_micros(retention_seconds)
            tables.runs[run.run_id] = row
            if row.parent is not None:
                tables.children[row.parent.run_id].append(run.run_id)
            tables.logs[run.run_id] = [
                EventRow(Event(e.event_type, e.key, json_text_or_none(e.details), to_micros(e.at)))
                for line in read
                for e in line.events
            ]
            for line in read:
                _restore_steps(tables, run.run_id, line)
            restore_streams(tables, run.run_id, read)
            if read[0].shape is not None and row.handler in tables.shapes:
                tables.shapes[row.handler].keep(read[0].shape, row.created_at)
            return "restored"

    async def forget_archive(self) -> str | None:
        async with self._transaction() as (tables, _):
            archive, tables.sweeper.archive = tables.sweeper.archive, None
            return archive


def _labels(tables: Tables, run_id: UUID) -> str:
    """Return a text that tells the tags and attributes of a run from others."""
    new = tables.runs[run_id].new
    return msgspec.json.encode([new.tags, sorted(new.attributes.items())]).decode()


def _line(tables: Tables, run_id: UUID) -> str:
    """Return all that a run is, as the database writes it."""
    row = tables.runs[run_id]
    new, parent = row.new, row.parent
    fields = compose(
        RunFields,
        row,
        new,
        input=json_raw(new.input),
        output=json_raw(row.output),
        error=json_raw(row.error),
        parent_run_id=None if parent is None else parent.run_id,
        parent_key=None if parent is None else parent.key,
        parent_close=None if parent is None else parent.close,
        created_at=to_datetime(row.created_at),
        started_at=maybe_datetime(row.started_at),
        due_at=maybe_datetime(row.due_at),
        clock_at=maybe_datetime(row.clock_at),
        completed_at=maybe_datetime(row.completed_at),
        deadline_at=maybe_datetime(row.deadline_at),
    )
    line = RunLine(
        run=fields,
        has_output=row.output is not None,
        retention_seconds=new.retention_seconds,
        attributes=dict(new.attributes),
        events=[event_fields(entry.event, idx) for idx, entry in enumerate(tables.logs[run_id])],
    )
    line.streams, line.chunks = streams_of(tables, run_id)
    if row.is_flow:
        if row.handler in tables.shapes:
            line.shape = shape_had(tables, run_id).shape
        steps = tables.steps.get(run_id, {})
        line.states = [_state(slug, step) for slug, step in sorted(steps.items())]
        line.elements = _elements(tables, run_id)
    return msgspec.json.encode(line).decode()


def _elements(tables: Tables, run_id: UUID) -> list[ElementFields]:
    return [
        ElementFields(
            slug, index, json_raw(output), json_raw(tables.failed.get((of, slug), {}).get(index))
        )
        for (of, slug), outputs in tables.elements.items()
        if of == run_id
        for index, output in outputs.items()
    ]


def _state(slug: str, step: StepRow) -> StepFields:
    return compose(
        StepFields,
        step,
        step_slug=slug,
        has_output=step.output is not None,
        output=json_raw(step.output),
        error=json_raw(step.error),
        started_at=maybe_datetime(step.started_at),
        ended_at=maybe_datetime(step.ended_at),
    )


def _run_row(run: RunFields, line: RunLine) -> RunRow:
    deadline = maybe_micros(run.deadline_at)
    new = compose(
        NewRun,
        run,
        input=json_text(run.input),
        retention_seconds=line.retention_seconds,
        attributes=line.attributes,
    )
    parent = None
    if run.parent_run_id is not None:
        parent = Parent(run.parent_run_id, run.parent_key or "", run.parent_close or "abandon")
    return RunRow(
        new,
        to_micros(run.created_at),
        deadline,
        parent,
        status=run.status,
        output=json_text(run.output) if line.has_output else None,
        error=json_text_or_none(run.error),
        started_at=maybe_micros(run.started_at),
        completed_at=maybe_micros(run.completed_at),
        due_at=maybe_micros(run.due_at),
        clock_at=maybe_micros(run.clock_at),
        build=run.build,
    )


def _restore_steps(tables: Tables, run_id: UUID, line: RunLine) -> None:
    for state in line.states:
        tables.steps[run_id][state.step_slug] = compose(
            StepRow,
            state,
            output=json_text(state.output) if state.has_output else None,
            error=json_text_or_none(state.error),
            started_at=maybe_micros(state.started_at),
            ended_at=maybe_micros(state.ended_at),
        )
    for element in line.elements:
        outputs = tables.elements[run_id, element.step_slug]
        outputs[element.task_index] = json_text(element.output)
        if (error := json_text_or_none(element.error)) is not None:
            tables.failed[run_id, element.step_slug][element.task_index] = error
