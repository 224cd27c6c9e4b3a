"""Schedules as they are read."""

from __future__ import annotations

from holdfast.store.memory.rows import NEVER
from holdfast.store.memory.schedules.rows import BackfillRow, ScheduleRow
from holdfast.store.memory.tables import Tables
from holdfast.types import DueSchedule, ScheduleRecord


def due_schedule(row: ScheduleRow) -> DueSchedule:
    """Return a schedule that a scheduler is given."""
    return DueSchedule(
        name=row.new.name,
        revision=row.revision,
        when=row.new.when,
        max_missed=row.new.policy.max_missed,
        catch_up_seconds=row.new.policy.catch_up_seconds,
        position=row.position,
        expected=None if row.next_tick_at == NEVER else row.next_tick_at,
    )


def open_backfills(tables: Tables, name: str) -> list[BackfillRow]:
    """Return the backfills of a schedule that are under way."""
    return [
        each
        for each in tables.backfills.values()
        if each.schedule == name and each.ended_at is None
    ]


def record(tables: Tables, row: ScheduleRow) -> ScheduleRecord:
    """Return a schedule as users see it."""
    return ScheduleRecord(
        name=row.new.name,
        when=row.new.when,
        target=row.new.target,
        policy=row.new.policy,
        from_code=row.from_code,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
        note=row.note,
        paused_at=row.paused_at,
        paused_by=row.paused_by,
        position=row.position,
        is_computed=row.next_tick_at is not None,
        next_tick_at=None if row.next_tick_at == NEVER else row.next_tick_at,
        error=row.error,
        last_tick_at=row.last_tick_at,
        last_run_id=row.last_run_id,
        open_run_ids=tuple(row.open_run_ids),
        buffered=row.buffered,
        backfills=len(open_backfills(tables, row.new.name)),
    )
