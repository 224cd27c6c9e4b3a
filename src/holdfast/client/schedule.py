"""Schedules and their ticks as callers see them: moments with a time zone, values not texts."""

from __future__ import annotations

from datetime import datetime
from typing import cast
from uuid import UUID

from holdfast.codec import decoder
from holdfast.types import (
    JSON,
    Bucket,
    PausedBy,
    ScheduleRecord,
    SkipCause,
    Target,
    TickOrigin,
    TickOutcome,
    TickPolicy,
    Value,
    When,
)
from holdfast.values.composing import shaped
from holdfast.values.moments import checked_micros, maybe_datetime, to_datetime

_plain = decoder(object)


class ScheduleInfo(Value, frozen=True, kw_only=True):
    """A schedule as it was when it was asked for.

    `name` is its full name, `app/name`. `when` says when it fires, `target` what each tick starts,
    publishes or sends, `policy` what becomes of ticks that overlap or are missed. `from_code` is
    True if an app's code has it. `updated_at` is when its definition changed last. `next_tick_at`
    is None while it is paused, if no tick follows, and shortly after a change; `last_tick_at` is
    its last tick that started a run, or would have, `last_run_id` the run that it started last.
    `error` says why its ticks cannot be computed. `paused_by` is "code" if the app's code no longer
    has it, else "user"; `note` was said at the pause, or when it was created. `open_run_ids` are
    its runs that had not ended at its last tick, the newest 100, `buffered` its ticks that wait for
    their ends, `backfills` the ranges under way. Moments are in UTC. `record` is its row.
    """

    name: str
    when: When
    target: Target
    policy: TickPolicy
    from_code: bool
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None
    paused_by: PausedBy | None
    note: str | None
    next_tick_at: datetime | None
    last_tick_at: datetime | None
    last_run_id: UUID | None
    open_run_ids: tuple[UUID, ...]
    buffered: int
    backfills: int
    error: str | None
    record: ScheduleRecord

    @property
    def input(self) -> JSON:
        """The input of each run, or the payload, as plain JSON values."""
        return cast("JSON", _plain(self.target.input))

    def next_ticks(self, count: int = 1, *, after: datetime) -> list[datetime]:
        """Return the first moments after one at which it fires, whether or not it is paused.

        They are fewer if the schedule ends. Raises ConfigurationError if this machine cannot
        evaluate its expression.
        """
        from holdfast.schedules import next_ticks

        return [to_datetime(at) for at in next_ticks(self.when, checked_micros(after), count)]


class Tick(Value, frozen=True, kw_only=True):
    """What a tick of a schedule did.

    `outcome` is "started" (the run is `run_id`), "sent" (the message is `message_id`, or the event
    has `reached` so many targets), "buffered" (it waits for the end of the run before
    it), "skipped" (`cause` says why) or "failed" (`error` says why). `cause` is "overlap" (a run
    had not ended), "replaced" (a later tick took its place), "too_late" (it was missed, and older
    than the catch-up window), "too_many" (it was missed, and later ones were enough) or
    "buffer_full" or "cancelled" (with its backfill). `origin` is "tick", "trigger" or "backfill".
    `stopped_run_id` is the run that was cancelled or terminated for it. Several ticks that were
    skipped together last from `at` to `until`; `count` says how many they are, None if they were
    not counted. `bucket` is its row.
    """

    schedule: str
    at: datetime
    outcome: TickOutcome
    origin: TickOrigin
    until: datetime | None
    count: int | None
    run_id: UUID | None
    stopped_run_id: UUID | None
    cause: SkipCause | None
    error: str | None
    message_id: int | None
    reached: int | None
    handled_at: datetime
    bucket: Bucket


def read_schedule(record: ScheduleRecord) -> ScheduleInfo:
    """Return a schedule as callers see it."""
    return shaped(ScheduleInfo, record, record=record)


def read_bucket(bucket: Bucket) -> Tick:
    """Return what a tick did, as callers see it."""
    return shaped(
        Tick,
        bucket,
        at=to_datetime(bucket.tick_at),
        until=maybe_datetime(bucket.until),
        count=bucket.ticks,
        bucket=bucket,
    )
