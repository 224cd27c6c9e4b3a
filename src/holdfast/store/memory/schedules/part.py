"""Schedules: what users and schedulers do with them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.clock_steps import catch_up
from holdfast.store.memory.database import Part
from holdfast.store.memory.payloads import check_limit
from holdfast.store.memory.rows import NEVER
from holdfast.store.memory.schedules import code
from holdfast.store.memory.schedules.checks import check_overlap_of, check_range, check_schedule
from holdfast.store.memory.schedules.firing import (
    await_ends,
    fire_tick,
    start_tick,
    startable,
    still_open,
)
from holdfast.store.memory.schedules.reading import (
    due_schedule,
    is_doubtful,
    open_backfills,
    record,
)
from holdfast.store.memory.schedules.rows import BackfillRow, ScheduleRow
from holdfast.store.memory.schedules.senders import check_queue_of
from holdfast.store.memory.schedules.writing import begin, begin_again, redefine, resume, told
from holdfast.store.memory.tables import Tables, distinct
from holdfast.types import (
    SCHEDULE_HEADER,
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
    ScheduleRecord,
)

_TRY_AGAIN = to_micros(600.0)  # after an expression could not be computed
_AHEAD = to_micros(1.0)  # by which a scheduler's clock may be wrong
_DAY = to_micros(86_400.0)
_MINUTE = to_micros(60.0)


class MemorySchedules(Part):
    async def create_schedule(self, new: NewSchedule) -> tuple[bool, list[Notice]]:
        async with self._transaction() as (tables, now):
            check_schedule(new)
            check_queue_of(tables, new)
            if new.name in tables.schedules:
                return False, []
            row = tables.schedules[new.name] = begin(new, now, tables.next_revision())
            if new.paused:
                row.paused_at, row.paused_by, row.look_at = now, "user", NEVER
            return True, told(new.name)

    async def update_schedule(
        self, new: NewSchedule, *, revision: int | None = None
    ) -> tuple[bool, list[Notice]]:
        async with self._transaction() as (tables, now):
            check_schedule(new)
            check_queue_of(tables, new)
            row = tables.schedules.get(new.name)
            if row is None or revision not in (None, row.revision):
                return False, []
            redefine(row, new, now, tables.next_revision())
            return True, told(new.name)

    async def delete_schedule(self, name: str) -> bool:
        async with self._transaction() as (tables, _):
            if tables.schedules.pop(name, None) is None:
                return False
            tables.buckets.pop(name, None)
            for key in [key for key, each in tables.backfills.items() if each.schedule == name]:
                del tables.backfills[key]
            return True

    async def pause_schedule(self, name: str, *, note: str | None = None) -> bool | None:
        async with self._transaction() as (tables, now):
            row = tables.schedules.get(name)
            if row is None:
                return None
            was_paused = row.paused_by is not None
            row.paused_at = now if row.paused_at is None else row.paused_at
            row.paused_by, row.note = "user", row.note if note is None else note
            row.next_tick_at, row.look_at = None, NEVER
            return not was_paused

    async def resume_schedule(self, name: str) -> tuple[bool | None, list[Notice]]:
        async with self._transaction() as (tables, now):
            row = tables.schedules.get(name)
            if row is None:
                return None, []
            if row.paused_by is None:
                return False, []
            resume(row, now)
            return True, told(name)

    async def trigger_schedule(
        self, name: str, *, at: int | None = None, overlap: Overlap | None = None
    ) -> tuple[Bucket | None, list[Notice]]:
        async with self._transaction() as (tables, now):
            row = tables.schedules.get(name)
            if row is None:
                return None, []
            check_overlap_of(row.new, overlap)
            at = now if at is None else at
            notices = fire_tick(tables, now, row, at, "trigger", overlap)
            return tables.buckets[name][at], distinct(notices)

    async def backfill_schedule(
        self, name: str, first: int, last: int, *, backfill_id: UUID, overlap: Overlap | None = None
    ) -> tuple[bool | None, list[Notice]]:
        async with self._transaction() as (tables, now):
            check_range(first, last, now)
            row = tables.schedules.get(name)
            if row is None:
                return None, []
            check_overlap_of(row.new, overlap)
            if backfill_id in tables.backfills:
                return False, []
            usual: Overlap = "allow" if row.new.policy.overlap == "allow" else "buffer_all"
            tables.backfills[backfill_id] = BackfillRow(
                name, overlap or usual, first - 1, last, now, now
            )
            return True, told(name)

    async def cancel_backfills(self, name: str) -> CancelledBackfills | None:
        async with self._transaction() as (tables, now):
            row = tables.schedules.get(name)
            if row is None:
                return None
            ended = open_backfills(tables, name)
            for each in ended:
                each.ended_at = now
            buckets = tables.buckets[name]
            waiting = [
                at
                for at, each in buckets.items()
                if (each.outcome, each.origin) == ("buffered", "backfill")
            ]
            for at in waiting:
                buckets[at] = msgspec.structs.replace(
                    buckets[at], outcome="skipped", cause="cancelled", handled_at=now
                )
            row.buffered -= len(waiting)
            return CancelledBackfills(len(ended), len(waiting))

    async def list_schedules(
        self,
        *,
        app: str | None = None,
        after: str | None = None,
        limit: int = 100,
        short_name: str | None = None,
        doubtful: bool = False,
    ) -> list[ScheduleRecord]:
        async with self._transaction() as (tables, now):
            check_limit(limit)
            names = sorted(
                name
                for name, row in tables.schedules.items()
                if (app is None or name.startswith(f"{app}/"))
                and (after is None or name > after)
                and (short_name is None or short_name in (name, name.partition("/")[2]))
                and (not doubtful or is_doubtful(row, now))
            )
            return [record(tables, tables.schedules[name]) for name in names[:limit]]

    async def get_schedule(self, name: str) -> ScheduleRecord | None:
        async with self._transaction() as (tables, _):
            row = tables.schedules.get(name)
            return None if row is None else record(tables, row)

    async def list_buckets(
        self, name: str, *, before: int | None = None, limit: int = 50
    ) -> list[Bucket]:
        async with self._transaction() as (tables, _):
            check_limit(limit)
            found = sorted(tables.buckets.get(name, {}).items(), reverse=True)
            return [each for at, each in found if before is None or at < before][:limit]

    async def ensure_schedules(
        self, app: str, digest: str, schedules: Sequence[NewSchedule], *, restore: bool = False
    ) -> tuple[EnsuredSchedules, list[Notice]]:
        async with self._transaction() as (tables, now):
            return code.ensure(tables, now, app, digest, schedules, restore=restore)

    async def due_schedules(
        self, *, limit: int = 1000, ahead_seconds: float = 0.0, lease_seconds: float = 5.0
    ) -> list[DueSchedule]:
        async with self._transaction() as (tables, now):
            until = now + to_micros(ahead_seconds)
            rows = [row for row in tables.schedules.values() if row.look_at <= until]
            due = sorted(rows, key=lambda row: row.look_at)[:limit]
            for row in due:
                row.look_at = max(row.look_at, now) + to_micros(ahead_seconds + lease_seconds)
            due.sort(key=lambda row: (row.next_tick_at or 0, row.new.name))
            return [due_schedule(row) for row in due]

    async def due_backfills(
        self, *, limit: int = 10, lease_seconds: float = 5.0
    ) -> list[DueBackfill]:
        async with self._transaction() as (tables, now):
            due = [
                (key, each)
                for key, each in tables.backfills.items()
                if each.ended_at is None and _due_at(each, now) <= now
            ][:limit]
            for _, each in due:
                each.look_at = now + to_micros(lease_seconds)
            return [
                DueBackfill(
                    backfill_id=key,
                    schedule=each.schedule,
                    when=tables.schedules[each.schedule].new.when,
                    position=each.position,
                    until=each.last_at,
                )
                for key, each in due
            ]

    async def release_schedules(
        self, schedules: Sequence[DueSchedule], backfills: Sequence[DueBackfill]
    ) -> list[Notice]:
        async with self._transaction() as (tables, now):
            for due in schedules:
                row = tables.schedules.get(due.name)
                if row is not None and due_schedule(row) == due and row.look_at < NEVER:
                    row.look_at = min(row.look_at, now if due.expected is None else due.expected)
            for asked in backfills:
                backfill = tables.backfills.get(asked.backfill_id)
                if backfill is not None and backfill.ended_at is None:
                    backfill.look_at = now
            return told("")

    async def next_look(self) -> NextLook:
        async with self._transaction() as (tables, now):
            rows = tables.schedules.values()
            moments = [row.look_at for row in rows if row.look_at < NEVER]
            backfills = tables.backfills.values()
            asked = [_due_at(each, now) for each in backfills if each.ended_at is None]
            buffered = any(startable(tables, row) for row in rows)
            return NextLook(min(moments, default=None), min(asked, default=None), buffered)

    async def fire_schedules(self, firings: Sequence[Firing]) -> Fired:
        async with self._transaction() as (tables, now):
            moved: set[str] = set()
            notices: list[Notice] = []
            for firing in sorted(firings, key=lambda each: each.name):
                row = tables.schedules.get(firing.name)
                if row is not None and _is_at(row, firing, now):
                    moved.add(firing.name)
                    notices += _move(tables, now, row, firing)
            return Fired(now, frozenset(moved), distinct(notices))

    async def fire_backfill(self, firing: BackfillFiring) -> tuple[bool, list[Notice]]:
        async with self._transaction() as (tables, now):
            each = tables.backfills.get(firing.backfill_id)
            if each is None or each.ended_at is not None or each.position != firing.position:
                return False, []
            row, notices = tables.schedules[each.schedule], list[Notice]()
            for at in firing.ticks:
                notices += fire_tick(tables, now, row, at, "backfill", each.overlap)
            each.position, each.look_at = firing.new_position, now
            if firing.error is not None or each.position >= each.last_at:
                each.ended_at = now
            return True, distinct(notices)

    async def start_buffered(
        self, *, run_ids: Sequence[UUID] | None = None, limit: int = 1000
    ) -> tuple[int, list[Notice]]:
        async with self._transaction() as (tables, now):
            started, notices = 0, list[Notice]()
            for row in _buffering(tables, run_ids):
                if not still_open(tables, row) and started < limit:
                    row.open_run_ids = []
                    buckets = tables.buckets[row.new.name]
                    at = min(startable(tables, row))
                    buckets[at], more = start_tick(tables, now, row, buckets[at])
                    row.buffered -= 1
                    started += 1
                    notices += more
                if row.buffered:
                    await_ends(tables, still_open(tables, row))
            return started, distinct(notices)

    async def sweep_buckets(self, *, limit: int = 1000) -> int:
        async with self._transaction() as (tables, now):
            begin_again(tables, now)
            catch_up(tables, now)
            over = [
                (bucket.handled_at, name, at)
                for name, buckets in tables.buckets.items()
                for at, bucket in buckets.items()
                if bucket.outcome != "buffered"
                and tables.schedules[name].kept_until(bucket.handled_at) <= now
            ]
            for _, name, at in sorted(over)[:limit]:
                del tables.buckets[name][at]
            ended = [
                key
                for key, each in tables.backfills.items()
                if each.ended_at is not None and each.ended_at < now - _DAY
            ]
            for key in ended[:limit]:
                del tables.backfills[key]
            return min(len(over), limit)


def _buffering(tables: Tables, run_ids: Sequence[UUID] | None) -> list[ScheduleRow]:
    """Return the schedules with buffered ticks that may start, by name, that started these runs.

    Without runs: those that have no open run.
    """
    rows = [row for _, row in sorted(tables.schedules.items())]
    if run_ids is None:
        rows = [row for row in rows if not still_open(tables, row)]
    else:
        headers = (tables.runs[run_id].new.headers for run_id in run_ids if run_id in tables.runs)
        names = {(each or {}).get(SCHEDULE_HEADER) for each in headers}
        rows = [row for row in rows if row.new.name in names]
    return [row for row in rows if startable(tables, row)]


def _is_at(row: ScheduleRow, firing: Firing, now: int) -> bool:
    expected = None if row.next_tick_at == NEVER else row.next_tick_at
    return (
        row.revision == firing.revision
        and row.paused_at is None
        and expected == firing.expected
        and firing.position <= now + _AHEAD
    )


def _move(tables: Tables, now: int, row: ScheduleRow, firing: Firing) -> list[Notice]:
    if firing.error is not None:
        row.error, row.next_tick_at, row.look_at = firing.error, NEVER, now + _TRY_AGAIN
        return []
    for gap in firing.skipped:
        skipped = Bucket(
            schedule=firing.name,
            tick_at=gap.first,
            outcome="skipped",
            until=gap.last if gap.last > gap.first else None,
            ticks=gap.count,
            cause=gap.cause,
            handled_at=now,
        )
        tables.buckets[firing.name].setdefault(gap.first, skipped)
    notices: list[Notice] = []
    for at in sorted(firing.ticks):
        notices += fire_tick(tables, now, row, at, "tick", None)
    row.position, row.error = firing.position, None
    row.next_tick_at = NEVER if firing.next_tick_at is None else firing.next_tick_at
    row.look_at = row.next_tick_at
    return notices


def _due_at(backfill: BackfillRow, now: int) -> int:
    """Return when it is to continue. If a lease ends after a minute, the clock has gone back."""
    return now if backfill.look_at > now + _MINUTE else backfill.look_at
