"""Definitions of schedules as they are written."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.store.memory.rows import NEVER
from holdfast.store.memory.schedules.rows import ScheduleRow
from holdfast.store.memory.tables import Tables
from holdfast.store.port import SCHEDULES_TOPIC
from holdfast.types import NewSchedule, Notice

_MINUTE: Final = 60_000_000


def told(name: str) -> list[Notice]:
    """Return the notice that makes schedulers look at a schedule, or at those of an app."""
    return [Notice(SCHEDULES_TOPIC, name)]


def begin(new: NewSchedule, now: int, revision: int) -> ScheduleRow:
    """Return a schedule that begins now: it has not been computed."""
    return ScheduleRow(
        new=msgspec.structs.replace(new, paused=False),
        revision=revision,
        created_at=now,
        updated_at=now,
        note=new.note,
        position=now,
        look_at=now,
    )


def redefine(row: ScheduleRow, new: NewSchedule, now: int, revision: int) -> None:
    """Replace a definition. Ticks that are due stay due if the moments of ticks stay the same."""
    is_new = row.new.when != new.when
    row.look_at = now
    if not is_new and row.error is None and row.next_tick_at is not None:
        row.look_at = row.next_tick_at
    if row.paused_at is not None:
        row.look_at = NEVER
    if is_new:
        row.position, row.next_tick_at, row.error = now, None, None
    if (kept := row.new.policy.bucket_retention_seconds) != new.policy.bucket_retention_seconds:
        row.retentions.append((now, kept))
    row.new = msgspec.structs.replace(new, paused=False)
    row.note = row.note if new.note is None else new.note
    row.revision, row.updated_at = revision, now


def begin_again(tables: Tables, now: int) -> None:
    """Let schedules that the clock left behind when it was set back begin again from now.

    Ticks that were skipped and have not come yet are forgotten.
    """
    for name, row in tables.schedules.items():
        if not _is_left_behind(row, now):
            continue
        row.position, row.look_at = min(row.position, now), now
        row.next_tick_at = row.error = None
        tables.buckets[name] = {
            at: each
            for at, each in tables.buckets[name].items()
            if at <= now or each.outcome != "skipped" or each.origin != "tick"
        }


def _is_left_behind(row: ScheduleRow, now: int) -> bool:
    """Return True if a schedule that is not paused would be silent until the clock is there."""
    soon = now + _MINUTE
    if row.paused_at is not None or row.position > soon:
        return row.paused_at is None
    is_put_off = row.error is not None and row.look_at > soon + 10 * _MINUTE
    is_leased = row.next_tick_at is not None and row.next_tick_at < row.look_at - _MINUTE
    return soon < row.look_at < NEVER and (is_put_off or is_leased)


def resume(row: ScheduleRow, now: int) -> None:
    """End a pause: the next tick is after now, also if the clock was set back."""
    row.paused_at = row.paused_by = row.note = row.next_tick_at = row.error = None
    is_ahead = row.position > now + _MINUTE
    row.position, row.look_at = now if is_ahead else max(row.position, now), now
