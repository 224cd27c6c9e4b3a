"""Queries: runs, logs, and the values that runs have set."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

import asyncpg

from holdfast.errors import DatabaseUnavailable, QueryTooSlow
from holdfast.events import read_last_failure
from holdfast.store.postgres.attributes import read_attributes
from holdfast.store.postgres.database import Part, read_headers
from holdfast.store.postgres.rows import json_text, read_event, reader
from holdfast.types import (
    ClippedEvent,
    CountBy,
    Event,
    RecordPage,
    RunCounts,
    RunFilter,
    RunRecord,
    Status,
    Wait,
)
from holdfast.values.moments import to_datetime
from holdfast.values.names import split_name

_read_run = reader(
    RunRecord, "app", "name", "tags", "headers", "wait", "archive", "attributes", "last_failure"
)
_read_wait = reader(Wait, "awaiting")


class PostgresQueries(Part):
    async def get_runs(
        self, run_ids: Sequence[UUID], *, payloads: bool = True
    ) -> dict[UUID, RunRecord]:
        return read_runs(await self._database.rows("get_runs", run_ids, payloads))

    async def list_runs(self, where: RunFilter) -> RecordPage:
        """Return a page of runs; see `QueryStore.list_runs`.

        It asks for one run more than the page has, to know whether there is a next page. If the
        search stopped before the page was full, the cursor is where it stopped.
        """
        created_at, run_id = None, None
        if where.cursor is not None:
            moment, _, last = where.cursor.partition("/")
            created_at, run_id = int(moment), UUID(last)
        with _in_time():
            found = await self._database.rows(
                "list_runs",
                *_conditions(where),
                created_at,
                run_id,
                where.limit + 1,
                where.payloads,
                _attributes(where),
                where.build,
            )
        runs = [_run(row) for row in found if row["run_id"] is not None]
        page = runs[: where.limit]
        if len(runs) > len(page):
            return RecordPage(page, _cursor(page[-1].created_at, page[-1].run_id))
        stopped_at = found[0]["stopped_at"] if found else None
        if stopped_at is None:
            return RecordPage(page, None)
        return RecordPage(page, _cursor(stopped_at, found[0]["stopped_id"]), stopped_at)

    async def count_runs_by(self, by: CountBy, where: RunFilter) -> RunCounts:
        with _in_time():
            found = await self._database.rows(
                "count_runs_by",
                by,
                *_conditions(where),
                where.limit,
                _attributes(where),
                where.build,
            )
        stopped_at = found[0]["stopped_at"] if found else None
        return RunCounts(
            by,
            {row["value"]: row["runs"] for row in found if row["value"] is not None},
            None if stopped_at is None else to_datetime(stopped_at),
        )

    async def runs_between(self, first: UUID, last: UUID, limit: int) -> list[UUID]:
        found = await self._database.rows("runs_between", first, last, limit)
        return [row[0] for row in found]

    async def count_runs(
        self, names: Sequence[str] | None, limit: int
    ) -> dict[str, dict[Status, int]]:
        counts: dict[str, dict[Status, int]] = {}
        with _in_time():
            found = await self._database.rows("count_runs", names, limit)
        for row in found:
            counts.setdefault(row["name"], {})[row["status"]] = row["runs"]
        return counts

    async def find_run(self, name: str, key: str) -> UUID | None:
        found = await self._database.row("find_run", name, key)
        run_id: UUID | None = found[0]
        return run_id

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        logs: dict[UUID, list[Event]] = {run_id: [] for run_id, _ in ranges}
        found = await self._database.rows(
            "read_events",
            [run_id for run_id, _ in ranges],
            [since for _, since in ranges],
            patience=patience,
        )
        for row in found:
            logs[row["run_id"]].append(read_event(row))
        return logs

    async def read_log(
        self, run_id: UUID, since: int, *, limit: int, clip: int
    ) -> list[ClippedEvent]:
        with _in_time():
            found = await self._database.rows("read_log", run_id, since, limit, clip)
        return [ClippedEvent(row["idx"], read_event(row), row["size"] or 0) for row in found]

    async def read_tails(
        self, ranges: Sequence[tuple[UUID, int]], *, limit: int, clip: int, most_bytes: int
    ) -> list[list[ClippedEvent]]:
        run_ids, since = [run_id for run_id, _ in ranges], [first for _, first in ranges]
        with _in_time():
            found = await self._database.rows("read_tails", run_ids, since, limit, clip, most_bytes)
        tails: list[list[ClippedEvent]] = [[] for _ in ranges]
        for row in found:
            place: int = row["place"]
            tails[place - 1].append(ClippedEvent(row["idx"], read_event(row), row["size"] or 0))
        return tails

    async def recent_log(
        self, *, since: int, limit: int, clip: int
    ) -> list[tuple[UUID, ClippedEvent]]:
        with _in_time():
            found = await self._database.rows("recent_log", since, limit, clip)
        return [
            (row["run_id"], ClippedEvent(row["idx"], read_event(row), row["size"] or 0))
            for row in found
        ]

    async def get_values(self, run_ids: Sequence[UUID]) -> dict[UUID, Mapping[str, str]]:
        values: dict[UUID, dict[str, str]] = {}
        for row in await self._database.rows("get_values", run_ids):
            of_run = values.setdefault(row["run_id"], {})
            if row["name"] is not None:
                of_run[row["name"]] = row["value"]
        return dict(values)

    async def find_reply(self, run_id: UUID, update_id: str) -> Event | None:
        found = await self._database.rows("find_reply", run_id, update_id)
        return read_event(found[0]) if found else None

    async def find_signal(self, run_id: UUID, signal_id: str) -> Event | None:
        found = await self._database.rows("find_signal", run_id, signal_id)
        return read_event(found[0]) if found else None

    async def newest_runs(self, run_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        found = await self._database.rows("newest_runs", run_ids)
        return {row["run_id"]: row["newest"] for row in found}


def read_runs(found: Sequence[asyncpg.Record]) -> dict[UUID, RunRecord]:
    """Return the runs of an answer, by id."""
    return {row["run_id"]: _run(row) for row in found}


def _attributes(where: RunFilter) -> str | None:
    return json_text(where.attributes) if where.attributes else None


def _conditions(where: RunFilter) -> tuple[object, ...]:
    """Return what runs must match, in the order of the parameters of SQL."""
    return (
        where.states or None,
        where.names or None,
        where.queues or None,
        where.tags or None,
        where.key,
        where.since,
        where.until,
        where.parent_run_id,
        where.input_contains,
    )


@contextmanager
def _in_time() -> Generator[None]:
    """Raise QueryTooSlow for a query that takes too long: the database can be reached."""
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


def _run(row: asyncpg.Record) -> RunRecord:
    app, name = split_name(row["name"])
    return _read_run(
        row,
        app=app,
        name=name,
        tags=tuple(row["tags"]),
        headers=read_headers(row["headers"]),
        wait=_wait(row) if row["status"] == "running" else None,
        archive=None,
        attributes=read_attributes(row["attributes"]),
        last_failure=read_last_failure(row["last_failure"]),
    )


def _wait(row: asyncpg.Record) -> Wait:
    return _read_wait(row, awaiting=tuple(row["awaiting"] or ()))
