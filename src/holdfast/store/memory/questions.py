"""The questions: what stands, changing nothing but the list of who waits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final
from uuid import UUID

import msgspec

from holdfast.codec import contains
from holdfast.events import UPDATE_ENDS
from holdfast.ids import keyed_run_id
from holdfast.names import split_name
from holdfast.store.memory.children import newest
from holdfast.store.memory.tables import NEVER, RunRow, Tables, TaskRow
from holdfast.types import Event, LoggedEvent, RecordPage, RunFilter, RunRecord, State, Wait

COUNT_LIMIT: Final = 1_000


def get_run(tables: Tables, now: int, run_id: UUID) -> RunRecord:
    """Return a run that exists, as a caller sees it."""
    row = tables.runs[run_id]
    turn = tables.turn(run_id) if row.status == "running" else None
    app, name = split_name(row.new.name)
    return RunRecord(
        run_id=run_id,
        app=app,
        name=name,
        version=row.new.version,
        key=row.new.key,
        queue=row.new.queue,
        priority=row.new.priority,
        status=row.status,
        state=_state(row, turn, now),
        input=row.new.input,
        output=row.output,
        error=row.error,
        tags=row.new.tags,
        headers=row.new.headers,
        retention_seconds=row.new.retention_seconds,
        created_at=row.created_at,
        started_at=row.started_at if turn is None else turn.started_at,
        completed_at=row.completed_at,
        deadline_at=row.deadline_at,
        wait=None if turn is None else _wait(turn),
        parent_run_id=None if row.parent is None else row.parent.run_id,
        parent_key=None if row.parent is None else row.parent.key,
    )


def _state(row: RunRow, turn: TaskRow | None, now: int) -> State:
    """Derive what a person sees of a run from the row of its next turn."""
    if row.status != "running" or turn is None:
        return row.status
    if turn.worker is not None:
        return "running"
    if turn.paused:
        return "paused"
    if turn.stuck is not None:
        return "stuck"
    return "queued" if turn.visible_at <= now else "waiting"


def _wait(turn: TaskRow) -> Wait:
    return Wait(
        visible_at=None if turn.visible_at >= NEVER else turn.visible_at,
        awaiting=turn.awaiting,
        worker=turn.worker,
        attempts=turn.attempts,
        lease_no=turn.lease_no,
        stuck=turn.stuck,
        paused=turn.paused,
    )


def get_runs(tables: Tables, now: int, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
    """Return the runs that exist."""
    return {run_id: get_run(tables, now, run_id) for run_id in run_ids if run_id in tables.runs}


def list_runs(tables: Tables, now: int, where: RunFilter) -> RecordPage:
    """List runs by (created_at, run_id), the greatest first, from behind the cursor."""
    runs = [get_run(tables, now, run_id) for run_id in tables.runs]
    found = sorted((run for run in runs if _matches(run, where)), key=_place, reverse=True)
    if where.cursor is not None:
        created_at, run_id = where.cursor.split("/")
        behind = int(created_at), UUID(run_id)
        found = [run for run in found if _place(run) < behind]
    page = found[: where.limit]
    cursor = f"{page[-1].created_at}/{page[-1].run_id}" if len(found) > len(page) else None
    if not where.payloads:
        page = [msgspec.structs.replace(run, input=None, output=None) for run in page]
    return RecordPage(page, cursor)


def runs_between(tables: Tables, first: UUID, last: UUID, limit: int) -> list[UUID]:
    """Return the ids of runs between two, in order."""
    return sorted(run_id for run_id in tables.runs if first <= run_id <= last)[:limit]


def _place(run: RunRecord) -> tuple[int, UUID]:
    return run.created_at, run.run_id


def _matches(run: RunRecord, where: RunFilter) -> bool:
    conditions: list[Callable[[], bool]] = [
        lambda: not where.states or run.state in where.states,
        lambda: not where.names or run.full_name in where.names,
        lambda: not where.queues or run.queue in where.queues,
        lambda: set(where.tags) <= set(run.tags),
        lambda: where.key is None or run.key == where.key,
        lambda: where.since is None or run.created_at >= where.since,
        lambda: where.until is None or run.created_at < where.until,
        lambda: where.parent_run_id in (None, run.parent_run_id),
        lambda: (
            where.input_contains is None or _contains(run.input or "null", where.input_contains)
        ),
    ]
    return all(condition() for condition in conditions)


def _contains(text: str, pattern: str) -> bool:
    return contains(json.loads(text), json.loads(pattern))


def find_run(tables: Tables, name: str, key: str) -> UUID | None:
    """Return the run of this workflow that was started with the key: its id says so."""
    run_id = keyed_run_id(name, key)
    return run_id if run_id in tables.runs else None


def recent_events(tables: Tables, since: int, limit: int) -> list[LoggedEvent]:
    """Return what happened in all runs since a moment."""
    events = (
        LoggedEvent(run_id, idx, tables.filled(run_id, row.event))
        for run_id, log in tables.logs.items()
        for idx, row in enumerate(log)
        if row.event.at >= since
    )
    return list(islice(sorted(events, key=lambda e: (e.event.at, e.run_id, e.idx)), limit))


class _ValueSet(msgspec.Struct):
    value: msgspec.Raw  # the very text: 1e300 stays 1e300


def get_values(tables: Tables, run_ids: Sequence[UUID]) -> dict[UUID, Mapping[str, str]]:
    """Return what runs have set for observers."""
    return {run_id: _values(tables, run_id) for run_id in run_ids if run_id in tables.runs}


def _values(tables: Tables, run_id: UUID) -> dict[str, str]:
    values: dict[str, str] = {}
    for event in tables.read(run_id):
        if event.type == "ValueSet" and event.key is not None and event.details is not None:
            recorded = msgspec.json.decode(event.details, type=_ValueSet)
            values[event.key] = bytes(recorded.value).decode()
    return values


def unserved(tables: Tables) -> list[tuple[str, str, int]]:
    """Count the tasks that no worker signed on may claim."""
    served = {
        (queue, handler)
        for worker in tables.workers.values()
        for queue in worker.queues
        for handler in worker.handlers
    }
    claimable = (task for task in tables.tasks.values() if task.kind != "approval")
    tasks = Counter((task.queue, task.handler) for task in claimable)
    return [
        (queue, handler, min(count, COUNT_LIMIT))
        for (queue, handler), count in sorted(tasks.items())
        if (queue, handler) not in served
    ]


def find_reply(tables: Tables, run_id: UUID, update_id: str) -> Event | None:
    """Return how the run answered an update."""
    for event in tables.read(run_id):
        if event.key == update_id and event.type in UPDATE_ENDS:
            return event
    return None


def newest_runs(tables: Tables, run_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Return what runs that continued as new have become."""
    return {run_id: newest(tables, run_id) for run_id in run_ids if run_id in tables.runs}


def wait_for_end(
    tables: Tables, now: int, topic: str, run_ids: Sequence[UUID]
) -> dict[UUID, RunRecord]:
    """Register a topic with the runs that go on; return those that have ended."""
    runs = get_runs(tables, now, run_ids)
    for run_id, run in runs.items():
        if run.status == "running":
            tables.waiters[run_id].add(topic)
    return {run_id: run for run_id, run in runs.items() if run.status != "running"}


def forget_waits(tables: Tables, topic: str) -> None:
    """Drop a topic wherever it waits."""
    for topics in tables.waiters.values():
        topics.discard(topic)
