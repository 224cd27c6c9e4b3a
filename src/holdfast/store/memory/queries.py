"""Queries: runs, logs, and the values that runs have set."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from uuid import UUID

import msgspec

from holdfast.codec import contains
from holdfast.details import ValueSet
from holdfast.events import CONTINUED, FORKED, SIGNAL_RECEIVED, UPDATE_ENDS, read_last_failure
from holdfast.store.memory.attributes import has_all
from holdfast.store.memory.chains import newest, runs_of_key
from holdfast.store.memory.database import Part
from holdfast.store.memory.rows import NEVER, RunRow, TaskRow
from holdfast.store.memory.tables import Tables
from holdfast.types import (
    ClippedEvent,
    CountBy,
    Event,
    LastFailureRecord,
    RecordPage,
    RunCounts,
    RunFilter,
    RunRecord,
    State,
    Status,
    Wait,
)
from holdfast.values.attributes import attribute_text
from holdfast.values.composing import compose
from holdfast.values.ids import keyed_run_id
from holdfast.values.moments import to_datetime
from holdfast.values.names import split_name


class MemoryQueries(Part):
    async def get_runs(
        self, run_ids: Sequence[UUID], *, payloads: bool = True
    ) -> dict[UUID, RunRecord]:
        async with self._transaction() as (tables, now):
            found = read_runs(tables, now, run_ids)
            if payloads:
                return found
            return {run_id: _without_payloads(run) for run_id, run in found.items()}

    async def list_runs(self, where: RunFilter) -> RecordPage:
        async with self._transaction() as (tables, now):
            found = _find(tables, now, where)
            if where.cursor is not None:
                created_at, run_id = where.cursor.split("/")
                behind = int(created_at), UUID(run_id)
                found = [run for run in found if _place(run) < behind]
            page = found[: where.limit]
            cursor = f"{page[-1].created_at}/{page[-1].run_id}" if len(found) > len(page) else None
            if not where.payloads:
                page = [_without_payloads(run) for run in page]
            return RecordPage(page, cursor)

    async def count_runs_by(self, by: CountBy, where: RunFilter) -> RunCounts:
        async with self._transaction() as (tables, now):
            found = _find(tables, now, where)
        counted = found[: where.limit]
        counts = Counter(value for run in counted for value in _values_of(run, by))
        most_first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        is_whole = len(counted) == len(found)
        last = None if is_whole else to_datetime(counted[-1].created_at)
        return RunCounts(by, dict(most_first), last)

    async def runs_between(self, first: UUID, last: UUID, limit: int) -> list[UUID]:
        async with self._transaction() as (tables, _):
            return sorted(run_id for run_id in tables.runs if first <= run_id <= last)[:limit]

    async def count_runs(
        self, names: Sequence[str] | None, limit: int
    ) -> dict[str, dict[Status, int]]:
        counts: dict[str, dict[Status, int]] = {}
        async with self._transaction() as (tables, _):
            for run in tables.runs.values():
                if names is None or run.new.name in names:
                    of_name = counts.setdefault("" if names is None else run.new.name, {})
                    of_name[run.status] = min(of_name.get(run.status, 0) + 1, limit)
        return counts

    async def find_run(self, name: str, key: str) -> UUID | None:
        """Return the id of the run that was started with this key, which its id shows."""
        async with self._transaction() as (tables, _):
            run_id = keyed_run_id(name, key)
            return run_id if run_id in tables.runs else None

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        async with self._transaction() as (tables, _):
            return {run_id: tables.read(run_id, since) for run_id, since in ranges}

    async def read_log(
        self, run_id: UUID, since: int, *, limit: int, clip: int
    ) -> list[ClippedEvent]:
        since = max(since, 0)
        async with self._transaction() as (tables, _):
            log = tables.logs.get(run_id, [])[since : since + limit]
            events = [tables.filled(run_id, row.event) for row in log]
        return [ClippedEvent.of(idx, event, clip) for idx, event in enumerate(events, since)]

    async def read_tails(
        self, ranges: Sequence[tuple[UUID, int]], *, limit: int, clip: int, most_bytes: int
    ) -> list[list[ClippedEvent]]:
        tails: list[list[ClippedEvent]] = [[] for _ in ranges]
        async with self._transaction() as (tables, _):
            logs = [tables.logs.get(run_id, [])[max(since, 0) :] for run_id, since in ranges]
            turns = sorted((at, place) for place, log in enumerate(logs) for at in range(len(log)))
            shown = whole = 0
            for at, place in turns[:limit]:
                if shown >= most_bytes or whole // 8 >= most_bytes:
                    break
                run_id, since = ranges[place]
                event = tables.filled(run_id, logs[place][at].event)
                tails[place].append(ClippedEvent.of(max(since, 0) + at, event, clip))
                shown += min(tails[place][-1].size, clip)
                whole += tails[place][-1].size
        return tails

    async def recent_log(
        self, *, since: int, limit: int, clip: int
    ) -> list[tuple[UUID, ClippedEvent]]:
        async with self._transaction() as (tables, _):
            recent = sorted(
                (row.event.at, run_id, idx)
                for run_id, log in tables.logs.items()
                for idx, row in enumerate(log)
                if row.event.at >= since
            )
            return [
                (
                    run_id,
                    ClippedEvent.of(
                        idx, tables.filled(run_id, tables.logs[run_id][idx].event), clip
                    ),
                )
                for _, run_id, idx in recent[:limit]
            ]

    async def get_values(self, run_ids: Sequence[UUID]) -> dict[UUID, Mapping[str, str]]:
        async with self._transaction() as (tables, _):
            return {run_id: _values(tables, run_id) for run_id in run_ids if run_id in tables.runs}

    async def find_reply(self, run_id: UUID, update_id: str) -> Event | None:
        return await self._find(run_id, update_id, UPDATE_ENDS)

    async def find_signal(self, run_id: UUID, signal_id: str) -> Event | None:
        return await self._find(run_id, signal_id, (SIGNAL_RECEIVED,))

    async def _find(self, run_id: UUID, key: str, types: Collection[str]) -> Event | None:
        async with self._transaction() as (tables, _):
            for event in tables.read(run_id):
                if event.key == key and event.type in types:
                    return event
            return None

    async def newest_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        async with self._transaction() as (tables, _):
            return {run_id: newest(tables, run_id) for run_id in run_ids if run_id in tables.runs}


def _without_payloads(run: RunRecord) -> RunRecord:
    return msgspec.structs.replace(run, input=None, output=None)


def read_runs(tables: Tables, now: int, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
    return {run_id: _run(tables, now, run_id) for run_id in run_ids if run_id in tables.runs}


def _run(tables: Tables, now: int, run_id: UUID) -> RunRecord:
    """Return a run that exists, as a caller sees it."""
    row = tables.runs[run_id]
    turn = tables.turn(run_id) if row.status == "running" else None
    app, name = split_name(row.new.name)
    return compose(
        RunRecord,
        row,
        row.new,
        app=app,
        name=name,
        state=_state(tables, row, turn, now),
        started_at=row.started_at if turn is None else turn.started_at,
        wait=None if turn is None else _wait(turn),
        parent_run_id=None if row.parent is None else row.parent.run_id,
        parent_key=None if row.parent is None else row.parent.key,
        last_failure=_last_failure(tables, row),
    )


def _last_failure(tables: Tables, row: RunRow) -> LastFailureRecord | None:
    """Return the last attempt of a run that was retried; see `RunRecord`."""
    kind = CONTINUED if row.status == "continued" else FORKED
    is_attempt = row.clock_at is not None and row.due_at is not None
    if kind == FORKED and not is_attempt:
        return None
    log = reversed(tables.logs[row.new.run_id])
    mark = next((each.event for each in log if each.event.type == kind), None)
    return None if mark is None else read_last_failure(mark.details)


def _state(tables: Tables, row: RunRow, turn: TaskRow | None, now: int) -> State:
    """Return the state of a run that people see, from the row of its next turn."""
    if row.status != "running" or turn is None:
        return row.status
    if row.new.kind == "flow":
        return _flow_state(tables, row.new.run_id, turn.paused, now)
    if turn.worker is not None:
        return "running"
    if turn.paused:
        return "paused"
    if turn.stuck is not None:
        return "stuck"
    return "queued" if turn.visible_at <= now else "waiting"


def _flow_state(tables: Tables, run_id: UUID, paused: bool, now: int) -> State:
    """Return the state of a run of a flow that has not ended, from the tasks of its steps."""
    tasks = [task for _, task in tables.tasks_of_run(run_id) if task.kind == "step"]
    if any(task.worker is not None for task in tasks):
        return "running"
    if paused:
        return "paused"
    return "queued" if any(task.visible_at <= now for task in tasks) else "waiting"


def _wait(turn: TaskRow) -> Wait:
    return compose(Wait, turn, visible_at=None if turn.visible_at >= NEVER else turn.visible_at)


def _find(tables: Tables, now: int, where: RunFilter) -> list[RunRecord]:
    """Return all runs that match, newest first."""
    of_key = None if where.key is None else runs_of_key(tables, where.names, where.key)
    run_ids = tables.runs if of_key is None else of_key
    runs = [_run(tables, now, run_id) for run_id in run_ids]
    return sorted((run for run in runs if _matches(run, where)), key=_place, reverse=True)


def _values_of(run: RunRecord, by: CountBy) -> Sequence[str]:
    """Return what a run counts for."""
    if by == "tag":
        return run.tags
    if by in run.attributes:
        return (attribute_text(run.attributes[by]),)
    known = {"workflow": run.full_name, "state": run.state, "queue": run.queue}
    return (known[by],) if by in known else ()


def _place(run: RunRecord) -> tuple[int, UUID]:
    return run.created_at, run.run_id


def _matches(run: RunRecord, where: RunFilter) -> bool:
    conditions: list[Callable[[], bool]] = [
        lambda: not where.states or run.state in where.states,
        lambda: not where.names or run.full_name in where.names,
        lambda: not where.queues or run.queue in where.queues,
        lambda: where.build in (None, run.build),
        lambda: set(where.tags) <= set(run.tags),
        lambda: has_all(run, where.attributes),
        lambda: where.since is None or run.created_at >= where.since,
        lambda: where.until is None or run.created_at < where.until,
        lambda: where.parent_run_id in (None, run.parent_run_id),
        lambda: (
            where.input_contains is None
            or contains(json.loads(run.input or "null"), json.loads(where.input_contains))
        ),
    ]
    return all(condition() for condition in conditions)


def _values(tables: Tables, run_id: UUID) -> dict[str, str]:
    values: dict[str, str] = {}
    for event in tables.read(run_id):
        if event.type == "ValueSet" and event.key is not None and event.details is not None:
            recorded = msgspec.json.decode(event.details, type=ValueSet)
            values[event.key] = bytes(recorded.value).decode()
    return values
