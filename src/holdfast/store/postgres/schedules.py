"""Schedules over the store's connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec
from msgspec.structs import astuple

from holdfast.codec import raw
from holdfast.store.postgres.attributes import read_attributes
from holdfast.store.postgres.database import Part, columns, read_notices
from holdfast.store.postgres.rows import json_text, reader
from holdfast.store.postgres.starts import labels
from holdfast.types import (
    BackfillFiring,
    Bucket,
    CancelledBackfills,
    DueBackfill,
    DueSchedule,
    EnsuredSchedules,
    Fired,
    Firing,
    NewSchedule,
    NextLook,
    Notice,
    Overlap,
    RunTarget,
    ScheduleRecord,
    SendTarget,
    Target,
    TickPolicy,
    When,
)
from holdfast.values.moments import to_datetime

_decode_tags: Final = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_headers: Final = msgspec.json.Decoder(dict[str, str]).decode

_COLUMNS: Final = (
    *("name", "target", "cron", "every", "timezone", "input", "kind", "overlap", "catch_up"),
    *("max_missed", "jitter", "starts_at", "ends_at", "anchor", "version", "queue", "priority"),
    *("timeout", "retention", "tags", "headers", "bucket_retention"),
)

_read_when = reader(When)
_read_policy = reader(TickPolicy)
_read_bucket = reader(Bucket)
_read_run_target = reader(RunTarget, "tags", "headers", "attributes", name="target")
_read_send_target = reader(SendTarget, "headers", name="target", group="message_group")
_read_record = reader(
    ScheduleRecord, "when", "target", "policy", "open_run_ids", position="tick_position"
)
_read_due = reader(DueSchedule, "when", position="tick_position")
_read_due_backfill = reader(DueBackfill, "when", schedule="name", position="tick_position")


class PostgresSchedules(Part):
    async def create_schedule(self, new: NewSchedule) -> tuple[bool, list[Notice]]:
        row = await self._database.row(
            "create_schedule", *_definition(new), new.note, new.paused, _group(new)
        )
        return row[0], []

    async def update_schedule(
        self, new: NewSchedule, *, revision: int | None = None
    ) -> tuple[bool, list[Notice]]:
        row = await self._database.row(
            "update_schedule", *_definition(new), new.note, revision, _group(new)
        )
        return row[0], []

    async def delete_schedule(self, name: str) -> bool:
        return bool(await self._database.value("delete_schedule", name))

    async def pause_schedule(self, name: str, *, note: str | None = None) -> bool | None:
        paused: bool | None = await self._database.value("pause_schedule", name, note)
        return paused

    async def resume_schedule(self, name: str) -> tuple[bool | None, list[Notice]]:
        return await self._database.value("resume_schedule", name), []

    async def trigger_schedule(
        self, name: str, *, at: int | None = None, overlap: Overlap | None = None
    ) -> tuple[Bucket | None, list[Notice]]:
        rows = await self._database.rows("trigger_schedule", name, at, overlap)
        if not rows:
            return None, []
        return _read_bucket(rows[0]), read_notices(rows[0]["notices"])

    async def backfill_schedule(
        self, name: str, first: int, last: int, *, backfill_id: UUID, overlap: Overlap | None = None
    ) -> tuple[bool | None, list[Notice]]:
        row = await self._database.row("backfill_schedule", name, first, last, overlap, backfill_id)
        return row[0], []

    async def cancel_backfills(self, name: str) -> CancelledBackfills | None:
        rows = await self._database.rows("cancel_backfills", name)
        return CancelledBackfills(**dict(rows[0])) if rows else None

    async def list_schedules(
        self,
        *,
        app: str | None = None,
        after: str | None = None,
        limit: int = 100,
        short_name: str | None = None,
        doubtful: bool = False,
    ) -> list[ScheduleRecord]:
        asked = (app, after, limit, None, short_name, doubtful)
        rows = await self._database.rows("list_schedules", *asked)
        return [_read_schedule(row) for row in rows]

    async def get_schedule(self, name: str) -> ScheduleRecord | None:
        rows = await self._database.rows("list_schedules", None, None, 1, name)
        return _read_schedule(rows[0]) if rows else None

    async def list_buckets(
        self, name: str, *, before: int | None = None, limit: int = 50
    ) -> list[Bucket]:
        rows = await self._database.rows("list_buckets", name, before, limit)
        return [_read_bucket(row) for row in rows]

    async def ensure_schedules(
        self, app: str, digest: str, schedules: Sequence[NewSchedule], *, restore: bool = False
    ) -> tuple[EnsuredSchedules, list[Notice]]:
        rows = json_text([_code_row(new) for new in schedules])
        row = await self._database.row("ensure_schedules", app, digest, rows, restore)
        names = (tuple(row[each] or ()) for each in ("added", "changed", "paused", "resumed"))
        return EnsuredSchedules(row["status"], *names), []

    async def due_schedules(
        self, *, limit: int = 1000, ahead_seconds: float = 0.0, lease_seconds: float = 5.0
    ) -> list[DueSchedule]:
        rows = await self._database.rows("due_schedules", limit, ahead_seconds, lease_seconds)
        return [_read_due(row, when=_read_when(row)) for row in rows]

    async def due_backfills(
        self, *, limit: int = 10, lease_seconds: float = 5.0
    ) -> list[DueBackfill]:
        rows = await self._database.rows("due_backfills", limit, lease_seconds)
        return [_read_due_backfill(row, when=_read_when(row)) for row in rows]

    async def release_schedules(
        self, schedules: Sequence[DueSchedule], backfills: Sequence[DueBackfill]
    ) -> list[Notice]:
        await self._database.rows(
            "release_schedules",
            *columns(schedules, "name", "revision", "expected"),
            [each.backfill_id for each in backfills],
        )
        return []

    async def next_look(self) -> NextLook:
        row = await self._database.row("next_look")
        return NextLook(row["next_look_at"], row["backfill_at"], row["has_buffered"])

    async def fire_schedules(self, firings: Sequence[Firing]) -> Fired:
        ticks = [(each.name, at) for each in firings for at in each.ticks]
        skipped = [
            (each.name, gap.first, gap.last, gap.count, gap.cause)
            for each in firings
            for gap in each.skipped
        ]
        row = await self._database.row(
            "fire_schedules",
            *columns(firings, "name", "revision", "expected", "position", "next_tick_at", "error"),
            *_columns(ticks, 2),
            *_columns(skipped, 5),
            self._database.tell,
        )
        return Fired(row["now"], frozenset(row["moved"]), read_notices(row["notices"]))

    async def fire_backfill(self, firing: BackfillFiring) -> tuple[bool, list[Notice]]:
        row = await self._database.row("fire_backfill", *astuple(firing))
        return row["moved"], read_notices(row["notices"])

    async def start_buffered(
        self, *, run_ids: Sequence[UUID] | None = None, limit: int = 1000
    ) -> tuple[int, list[Notice]]:
        row = await self._database.row("start_buffered", limit, run_ids)
        return row["started"], read_notices(row["notices"])

    async def sweep_buckets(self, *, limit: int = 1000) -> int:
        return int(await self._database.value("sweep_buckets", limit))


def _definition(new: NewSchedule) -> tuple[object, ...]:
    """Return the arguments that `create_schedule` and `update_schedule` have in common.

    They are the columns `_COLUMNS` of `schedules`.
    """
    when, target, policy = new.when, new.target, new.policy
    run = _run_of(target)
    return (
        new.name,
        target.name,
        when.cron,
        when.every_seconds,
        when.timezone,
        target.input,
        target.kind,
        policy.overlap,
        policy.catch_up_seconds,
        policy.max_missed,
        policy.jitter_seconds,
        when.starts_at,
        when.ends_at,
        when.anchor,
        run.version,
        run.queue if run is target else None,
        target.priority,
        run.timeout_seconds,
        run.retention_seconds,
        labels(run.tags, run.attributes),
        json_text(target.headers) if target.headers else None,
        policy.bucket_retention_seconds,
    )


def _code_row(new: NewSchedule) -> dict[str, object]:
    """Return a row of `schedules` with the digest of its definition."""
    row: dict[str, Any] = dict(zip(_COLUMNS, _definition(new), strict=True))
    row |= {name: _moment(row[name]) for name in ("starts_at", "ends_at", "anchor")}
    row |= {name: raw(row[name]) for name in ("input", "tags", "headers")}
    return {**row, "message_group": _group(new), "note": new.note, "code_digest": new.digest}


def _run_of(target: Target) -> RunTarget:
    """Return what each tick starts; for one that sends, a target without any values of a run."""
    return target if isinstance(target, RunTarget) else RunTarget(name=target.name)


def _group(new: NewSchedule) -> str | None:
    return new.target.group if isinstance(new.target, SendTarget) else None


def _moment(at: int | None) -> str | None:
    return None if at is None else to_datetime(at).isoformat()


def _columns(rows: Sequence[tuple[object, ...]], count: int) -> list[list[object]]:
    return [[row[place] for row in rows] for place in range(count)]


def _read_schedule(row: asyncpg.Record) -> ScheduleRecord:
    return _read_record(
        row,
        when=_read_when(row),
        target=_read_target(row),
        policy=_read_policy(row),
        open_run_ids=tuple(row["open_run_ids"]),
    )


def _read_target(row: asyncpg.Record) -> Target:
    headers = _decode_headers(row["headers"]) if row["headers"] is not None else None
    if row["kind"] in ("topic", "queue"):
        return _read_send_target(row, headers=headers)
    tags = _decode_tags(row["tags"]) if row["tags"] is not None else ()
    attributes = read_attributes(row["attributes"])
    return _read_run_target(row, tags=tags, headers=headers, attributes=attributes)
