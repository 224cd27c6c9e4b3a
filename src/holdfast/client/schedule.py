"""Schedules and their ticks as callers see them: moments with a time zone, values not texts."""

from __future__ import annotations

from dataclasses import dataclass
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
    When,
)
from holdfast.values.moments import maybe_datetime, to_datetime, to_micros

_plain = decoder(object)


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it was when it was asked for.

    `when` says when it fires, `target` what each tick starts, `policy` what becomes of ticks that
    overlap or are missed. `from_code` is True if an app's code has it. `next_tick_at` is None while
    it is paused, if no tick follows, and shortly after a change. `error` says why its ticks cannot
    be computed. `paused_by` is "code" if the app's code no longer has it, else "user"; `note` was
    said at the pause, or when it was created. `open_run_ids` are its runs that had not ended at its
    last tick, `buffered` its ticks that wait for their ends, `backfills` the ranges under way.
    Moments are in UTC. `record` is its row.
    """

    record: ScheduleRecord

    @property
    def name(self) -> str:
        """Its full name, `app/name`."""
        return self.record.name

    @property
    def when(self) -> When:
        """When it fires."""
        return self.record.when

    @property
    def target(self) -> Target:
        """What each tick starts, publishes or sends."""
        return self.record.target

    @property
    def policy(self) -> TickPolicy:
        """What becomes of ticks that overlap or are missed."""
        return self.record.policy

    @property
    def input(self) -> JSON:
        """The input of each run, or the payload, as plain JSON values."""
        return cast("JSON", _plain(self.record.target.input))

    @property
    def from_code(self) -> bool:
        """True if an app's code has it."""
        return self.record.from_code

    @property
    def created_at(self) -> datetime:
        """When it was created."""
        return to_datetime(self.record.created_at)

    @property
    def updated_at(self) -> datetime:
        """When its definition changed last."""
        return to_datetime(self.record.updated_at)

    @property
    def paused_at(self) -> datetime | None:
        """When it was paused, None if it is not paused."""
        return maybe_datetime(self.record.paused_at)

    @property
    def paused_by(self) -> PausedBy | None:
        """`user`, or `code` if the app's code no longer has it."""
        return self.record.paused_by

    @property
    def note(self) -> str | None:
        """What was said at its last pause, or when it was created."""
        return self.record.note

    @property
    def next_tick_at(self) -> datetime | None:
        """Its next tick, None if there is none."""
        return maybe_datetime(self.record.next_tick_at)

    @property
    def last_tick_at(self) -> datetime | None:
        """Its last tick that started a run, or would have."""
        return maybe_datetime(self.record.last_tick_at)

    @property
    def last_run_id(self) -> UUID | None:
        """The run that it started last."""
        return self.record.last_run_id

    @property
    def open_run_ids(self) -> tuple[UUID, ...]:
        """Its runs that had not ended at its last tick, the newest 100."""
        return self.record.open_run_ids

    @property
    def buffered(self) -> int:
        """How many ticks wait for the end of a run."""
        return self.record.buffered

    @property
    def backfills(self) -> int:
        """How many backfills are under way."""
        return self.record.backfills

    @property
    def error(self) -> str | None:
        """Why its ticks cannot be computed, None if they can."""
        return self.record.error

    def next_ticks(self, count: int = 1, *, after: datetime) -> list[datetime]:
        """Return the first moments after one at which it fires, whether or not it is paused.

        They are fewer if the schedule ends. Raises ConfigurationError if this machine cannot
        evaluate its expression.
        """
        from holdfast.schedules import next_ticks

        return [to_datetime(at) for at in next_ticks(self.when, to_micros(after), count)]


@dataclass(frozen=True, slots=True)
class Tick:
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


def read_bucket(bucket: Bucket) -> Tick:
    """Return what a tick did, as callers see it."""
    return Tick(
        schedule=bucket.schedule,
        at=to_datetime(bucket.tick_at),
        outcome=bucket.outcome,
        origin=bucket.origin,
        until=maybe_datetime(bucket.until),
        count=bucket.ticks,
        run_id=bucket.run_id,
        stopped_run_id=bucket.stopped_run_id,
        cause=bucket.cause,
        error=bucket.error,
        message_id=bucket.message_id,
        reached=bucket.reached,
        handled_at=to_datetime(bucket.handled_at),
        bucket=bucket,
    )
