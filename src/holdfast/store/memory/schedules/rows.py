"""The rows of schedules, of backfills, and of what the code of apps has."""

from __future__ import annotations

from uuid import UUID

import msgspec

from holdfast.store.memory.clock import to_micros
from holdfast.types import NewSchedule, Overlap, PausedBy


class ScheduleRow(msgspec.Struct):
    """A schedule, and where it is. A `next_tick_at` of None has not been computed.

    `retentions` are those that buckets had before, each with the last moment at which it did.
    """

    new: NewSchedule
    revision: int
    created_at: int
    updated_at: int
    note: str | None
    position: int
    look_at: int
    from_code: bool = False
    code_digest: str | None = None
    paused_at: int | None = None
    paused_by: PausedBy | None = None
    next_tick_at: int | None = None
    error: str | None = None
    last_tick_at: int | None = None
    last_run_id: UUID | None = None
    open_run_ids: list[UUID] = []
    buffered: int = 0
    retentions: list[tuple[int, float]] = []

    def kept_until(self, handled_at: int) -> int:
        """Return until when a bucket is kept, by the retention of when its tick was handled."""
        before = (seconds for last, seconds in self.retentions if handled_at <= last)
        return handled_at + to_micros(next(before, self.new.policy.bucket_retention_seconds))


class BackfillRow(msgspec.Struct):
    """Ticks that were asked for: those up to `position` are dealt with."""

    schedule: str
    overlap: Overlap
    position: int
    last_at: int
    look_at: int
    created_at: int
    ended_at: int | None = None


class ScheduleSet(msgspec.Struct):
    """All schedules that a code of an app has: when it became current, and who still has it."""

    adopted_at: int
    heard_at: int
    is_current: bool
