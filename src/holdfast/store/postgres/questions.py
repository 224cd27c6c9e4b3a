"""The questions: logs, runs, workers, and the lists of who waits."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.errors import DatabaseUnavailable, QueryTooSlow
from holdfast.names import split_name
from holdfast.store.postgres import rows
from holdfast.store.postgres.connections import Database
from holdfast.types import (
    Event,
    LoggedEvent,
    RecordPage,
    RunFilter,
    RunRecord,
    ThreadUse,
    Wait,
    WorkerInfo,
)

if TYPE_CHECKING:
    import asyncpg


async def read_events(
    database: Database, ranges: Sequence[tuple[UUID, int]], patience: int
) -> dict[UUID, list[Event]]:
    """Read logs, each from an index on."""
    logs: dict[UUID, list[Event]] = {run_id: [] for run_id, _ in ranges}
    found = await database.rows(
        "read_events",
        [run_id for run_id, _ in ranges],
        [since for _, since in ranges],
        patience=patience,
    )
    for row in found:
        logs[row["run_id"]].append(rows.event(row))
    return logs


async def get_runs(database: Database, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
    """Return the runs that exist."""
    return _by_id(await database.rows("get_runs", run_ids))


async def wait_for_end(
    database: Database, topic: str, run_ids: Sequence[UUID]
) -> dict[UUID, RunRecord]:
    """Register a topic with the runs that go on; return those that have ended."""
    return _by_id(await database.rows("wait_for_end", topic, run_ids))


async def list_runs(database: Database, where: RunFilter) -> RecordPage:
    """List runs, newest first. One more than the page is asked for, to know of a next one.

    A list that had to stop before its page was full has its cursor where it stopped.
    """
    created_at, run_id = None, None
    if where.cursor is not None:
        moment, _, last = where.cursor.partition("/")
        created_at, run_id = int(moment), UUID(last)
    with _in_time():
        found = await _list_runs(database, where, created_at, run_id)
    runs = [_run(row) for row in found if row["run_id"] is not None]
    page = runs[: where.limit]
    if len(runs) > len(page):
        return RecordPage(page, _cursor(page[-1].created_at, page[-1].run_id))
    stopped_at = found[0]["stopped_at"] if found else None
    if stopped_at is None:
        return RecordPage(page, None)
    return RecordPage(page, _cursor(stopped_at, found[0]["stopped_id"]), stopped_at)


async def _list_runs(
    database: Database, where: RunFilter, before_at: int | None, before_id: UUID | None
) -> list[asyncpg.Record]:
    return await database.rows(
        "list_runs",
        where.states or None,
        where.names or None,
        where.queues or None,
        where.tags or None,
        where.key,
        where.since,
        where.until,
        where.parent_run_id,
        where.input_contains,
        before_at,
        before_id,
        where.limit + 1,
        where.payloads,
    )


@contextmanager
def _in_time() -> Generator[None]:
    """Tell a question that takes too long from a database that cannot be reached."""
    try:
        yield
    except DatabaseUnavailable as error:
        if isinstance(error.__cause__, TimeoutError):
            raise QueryTooSlow(
                "the database took too long to answer this list: narrow it with names, since or "
                "until"
            ) from error
        raise


def _cursor(created_at: int, run_id: UUID) -> str:
    return f"{created_at}/{run_id}"


async def runs_between(database: Database, first: UUID, last: UUID, limit: int) -> list[UUID]:
    """Return the ids of runs between two, in order."""
    found = await database.rows("runs_between", first, last, limit)
    return [row[0] for row in found]


async def find_run(database: Database, name: str, key: str) -> UUID | None:
    """Return the run of this workflow that was started with the key."""
    found = await database.row("find_run", name, key)
    run_id: UUID | None = found[0]
    return run_id


async def find_reply(database: Database, run_id: UUID, update_id: str) -> Event | None:
    """Return how a run answered an update, None before that."""
    found = await database.rows("find_reply", run_id, update_id)
    return rows.event(found[0]) if found else None


async def newest_runs(database: Database, run_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Follow runs that continued as new to the last ones of their chains."""
    found = await database.rows("newest_runs", run_ids)
    return {row["run_id"]: row["newest"] for row in found}


async def recent_events(database: Database, since: int, limit: int) -> list[LoggedEvent]:
    """Return what happened in all runs since a moment, oldest first."""
    with _in_time():
        found = await database.rows("recent_events", since, limit)
    return [LoggedEvent(row["run_id"], row["idx"], rows.event(row)) for row in found]


async def get_values(database: Database, run_ids: Sequence[UUID]) -> dict[UUID, Mapping[str, str]]:
    """Return what runs have set for observers."""
    values: dict[UUID, dict[str, str]] = {}
    for row in await database.rows("get_values", run_ids):
        of_run = values.setdefault(row["run_id"], {})
        if row["name"] is not None:
            of_run[row["name"]] = row["value"]
    return dict(values)


async def list_workers(database: Database) -> list[WorkerInfo]:
    """Return the workers signed on, by id."""
    return [
        WorkerInfo(
            worker_id=row["worker_id"],
            hostname=row["hostname"],
            pid=row["pid"],
            queues=tuple(row["queues"]),
            handlers=tuple(row["handlers"]),
            concurrency=row["concurrency"],
            holdfast_version=row["holdfast_version"],
            started_at=row["started_at"],
            heard_at=row["heard_at"],
            threads=None if row["threads"] is None else ThreadUse(*row["threads"]),
        )
        for row in await database.rows("list_workers")
    ]


async def unserved(database: Database) -> list[tuple[str, str, int]]:
    """Count the tasks that no worker signed on may claim."""
    found = await database.rows("unserved")
    return [(row["queue"], row["handler"], row["tasks"]) for row in found]


def _by_id(found: list[asyncpg.Record]) -> dict[UUID, RunRecord]:
    return {row["run_id"]: _run(row) for row in found}


def _run(row: asyncpg.Record) -> RunRecord:
    app, name = split_name(row["name"])
    return RunRecord(
        run_id=row["run_id"],
        app=app,
        name=name,
        version=row["version"],
        key=row["key"],
        queue=row["queue"],
        priority=row["priority"],
        status=row["status"],
        state=row["state"],
        input=row["input"],
        output=row["output"],
        error=row["error"],
        tags=tuple(row["tags"]),
        headers=rows.headers(row["headers"]),
        retention_seconds=row["retention_seconds"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        completed_at=row["completed_at"],
        deadline_at=row["deadline_at"],
        wait=_wait(row) if row["status"] == "running" else None,
        parent_run_id=row["parent_run_id"],
        parent_key=row["parent_key"],
    )


def _wait(row: asyncpg.Record) -> Wait:
    return Wait(
        visible_at=row["visible_at"],
        awaiting=tuple(row["awaiting"] or ()),
        worker=row["worker"],
        attempts=row["attempts"],
        lease_no=row["lease_no"],
        stuck=row["stuck"],
        paused=row["paused"],
    )
