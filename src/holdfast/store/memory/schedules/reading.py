"""Schedules as they are read."""

from __future__ import annotations

from holdfast.store.memory.rows import NEVER
from holdfast.store.memory.schedules.rows import BackfillRow, ScheduleRow
from holdfast.store.memory.tables import Tables
from holdfast.types import DueSchedule, ScheduleRecord
from holdfast.values.composing import compose


def due_schedule(row: ScheduleRow) -> DueSchedule:
    """Return a schedule that a scheduler is given."""
    return compose(
        DueSchedule,
        row,
        row.new,
        row.new.policy,
        expected=None if row.next_tick_at == NEVER else row.next_tick_at,
    )


def is_doubtful(row: ScheduleRow, now: int) -> bool:
    """Return True if a schedule may not fire as it should; see `ScheduleStore.list_schedules`."""
    due_at = max(row.updated_at, row.position) if row.next_tick_at is None else row.next_tick_at
    is_wrong = row.error is not None or row.position > now or due_at < now
    return row.paused_at is None and is_wrong


def open_backfills(tables: Tables, name: str) -> list[BackfillRow]:
    """Return the backfills of a schedule that are under way."""
    return [
        each
        for each in tables.backfills.values()
        if each.schedule == name and each.ended_at is None
    ]


def record(tables: Tables, row: ScheduleRow) -> ScheduleRecord:
    """Return a schedule as users see it."""
    return compose(
        ScheduleRecord,
        row,
        row.new,
        is_computed=row.next_tick_at is not None,
        next_tick_at=None if row.next_tick_at == NEVER else row.next_tick_at,
        open_run_ids=tuple(row.open_run_ids),
        backfills=len(open_backfills(tables, row.new.name)),
    )
