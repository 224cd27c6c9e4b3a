"""Schedules: when they come due, what they start, and what each tick did.

A **tick** is a moment at which a schedule comes due. It is the moment that the expression names,
not the moment at which something happens: a tick that is handled late, or whose run is delayed by
jitter, is the same tick. What a tick did is its **bucket**.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from holdfast.types.base import AttributeValue, Notice, RunKind, Value
from holdfast.values.moments import to_datetime

SCHEDULE_HEADER: Final = "holdfast-schedule"  # of a run that a schedule has started: its name
TICK_HEADER: Final = "holdfast-scheduled-at"  # the run's tick, as `tick_text` writes it

Overlap: TypeAlias = Literal[
    "skip", "buffer_one", "buffer_all", "allow", "cancel_running", "terminate_running"
]
TickOutcome: TypeAlias = Literal["started", "sent", "buffered", "skipped", "failed"]
SendKind: TypeAlias = Literal["topic", "queue"]
SkipCause: TypeAlias = Literal[
    "overlap", "replaced", "too_late", "too_many", "buffer_full", "cancelled"
]
TickOrigin: TypeAlias = Literal["tick", "trigger", "backfill"]
PausedBy: TypeAlias = Literal["user", "code"]

DAY: Final = 86_400.0
DEFAULT_CATCH_UP: Final = DAY
DEFAULT_BUCKET_RETENTION: Final = 30 * DAY
MOST_MISSED: Final = 1_000
MOST_BUFFERED: Final = 10_000


class When(Value, frozen=True, kw_only=True):
    """At which moments a schedule comes due: by a cron expression, or at an interval.

    Exactly one of `cron` and `every_seconds` is given. The fields of `cron` are wall-clock time in
    `timezone` (an IANA name). An interval counts from `anchor`, by default from 1970 UTC. The first
    tick is not before `starts_at`, the last one not after `ends_at`. Moments are microseconds since
    1970 UTC.
    """

    cron: str | None = None
    every_seconds: float | None = None
    anchor: int | None = None
    timezone: str = "UTC"
    starts_at: int | None = None
    ends_at: int | None = None


class RunTarget(Value, frozen=True, kw_only=True, tag="run"):
    """Each tick starts a run of a workflow or of a flow, with these values of a start.

    `name` is the full name, `app/name`. A version of None is 1 for a workflow, and the newest for
    a flow. `input` is JSON text. The queue, the priority and the times are those of `NewRun`.
    """

    kind: RunKind = "workflow"
    name: str
    version: int | None = None
    input: str = "null"
    queue: str | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    retention_seconds: float | None = None
    tags: tuple[str, ...] = ()
    headers: Mapping[str, str] | None = None
    attributes: Mapping[str, AttributeValue] = {}


class SendTarget(Value, frozen=True, kw_only=True, tag="send"):
    """Each tick publishes to a topic or sends to a message queue, which `name` names.

    `input` is the payload, as JSON text. The others are of messages: a `group` of None is the
    schedule's name in a FIFO queue.
    """

    kind: SendKind
    name: str
    input: str = "null"
    group: str | None = None
    priority: int | None = None
    headers: Mapping[str, str] | None = None


Target: TypeAlias = RunTarget | SendTarget  # one class a kind of target, each with a tag


class TickPolicy(Value, frozen=True, kw_only=True):
    """What becomes of ticks that overlap, and of those that nobody could handle in time.

    `overlap` says what a tick does while a run of the schedule has not ended, or a tick is
    buffered:

    - `skip`: nothing.
    - `buffer_one`: it waits for the end of the run, unless another tick waits already.
    - `buffer_all`: it waits; one run follows the other. At most `MOST_BUFFERED` ticks wait.
    - `allow`: it starts a run beside the other.
    - `cancel_running`: it asks the run to stop, and starts when that has ended. It replaces a tick
      that waits.
    - `terminate_running`: it ends the run, and starts.

    Ticks that are up to 10 s late are handled as if they were in time. Of those that are later,
    those within `catch_up_seconds` count, and of these the last `max_missed`; the others are
    skipped, which their buckets say. The run of a tick starts up to `jitter_seconds` later: how
    much later is the same whenever the same tick of the same schedule is computed. Buckets are
    kept for `bucket_retention_seconds`.
    """

    overlap: Overlap = "skip"
    catch_up_seconds: float = DEFAULT_CATCH_UP
    max_missed: int = 1
    jitter_seconds: float = 0.0
    bucket_retention_seconds: float = DEFAULT_BUCKET_RETENTION


class NewSchedule(Value, frozen=True, kw_only=True):
    """A schedule to create. `name` is the full name, `app/name`; `note` is for people."""

    name: str
    when: When
    target: Target
    policy: TickPolicy = TickPolicy()
    note: str | None = None
    paused: bool = False

    @property
    def digest(self) -> str:
        """A digest of the definition: when the schedule comes due, what it starts, its policy."""
        target = msgspec.to_builtins(self.target)
        if not target.get("attributes"):  # as in releases that had none
            target.pop("attributes", None)
        definition = (self.name, self.when, target, self.policy)
        return hashlib.sha256(msgspec.json.encode(definition, order="sorted")).hexdigest()


class ScheduleRecord(Value, frozen=True, kw_only=True):
    """A schedule in the database.

    `revision` is another number after each change of its definition. Ticks up to `position` are
    dealt with. The next is `next_tick_at`: None while no worker has computed it since the change
    (`is_computed` False), while the schedule is paused, and if there is none any more. `error`
    says why it could not be computed. `paused_by` is `code` if the code of its app no longer has
    it. `note` is what was said at the last pause, or at its creation. `open_run_ids` are the runs
    that had not ended when the last tick was handled, the newest 100 of them; `buffered` ticks
    wait for their ends. `backfills` are ranges that are not yet dealt with.
    """

    name: str
    when: When
    target: Target
    policy: TickPolicy
    from_code: bool
    revision: int
    created_at: int
    updated_at: int
    note: str | None
    paused_at: int | None
    paused_by: PausedBy | None
    position: int
    is_computed: bool
    next_tick_at: int | None
    error: str | None
    last_tick_at: int | None
    last_run_id: UUID | None
    open_run_ids: tuple[UUID, ...] = ()
    buffered: int = 0
    backfills: int = 0


class Bucket(Value, frozen=True, kw_only=True):
    """What a tick did.

    - `started`: it started `run_id`, for which `stopped_run_id` was terminated or asked to stop,
      if there is one.
    - `sent`: it sent the message `message_id`, or published an event that `reached` so many
      targets.
    - `buffered`: it waits for the end of the run before it.
    - `skipped`, and `cause` says why: a run of the schedule had not ended (`overlap`), a later
      tick took its place (`replaced`), it was older than the catch-up window (`too_late`), later
      ticks were enough (`too_many`), too many ticks waited (`buffer_full`), its backfill was
      cancelled (`cancelled`).
    - `failed`: it could not start, and `error` says why.

    A bucket of several skipped ticks lasts from `tick_at` until `until`; `ticks` says how many,
    None if they were not counted.
    """

    schedule: str
    tick_at: int
    outcome: TickOutcome
    origin: TickOrigin = "tick"
    until: int | None = None
    ticks: int | None = 1
    run_id: UUID | None = None
    stopped_run_id: UUID | None = None
    cause: SkipCause | None = None
    error: str | None = None
    message_id: int | None = None
    reached: int | None = None
    handled_at: int


class CancelledBackfills(Value, frozen=True):
    """How many backfills were cancelled, and how many ticks of theirs waited for ends of runs."""

    backfills: int
    waiting_ticks: int


class DueSchedule(Value, frozen=True, kw_only=True):
    """A schedule whose ticks are to be computed, and fired if their moments have come.

    `expected` is its `next_tick_at`, None if that has not been computed.
    """

    name: str
    revision: int
    when: When
    max_missed: int
    catch_up_seconds: float
    position: int
    expected: int | None


class DueBackfill(Value, frozen=True, kw_only=True):
    """A range whose ticks after `position` and up to `until` are to be computed and fired."""

    backfill_id: UUID
    schedule: str
    when: When
    position: int
    until: int


class NextLook(Value, frozen=True):
    """When schedulers have to look again: at schedules, at backfills; None for never.

    `has_buffered` is True if ticks wait for ends of runs.
    """

    at: int | None
    backfill_at: int | None
    has_buffered: bool


class SkippedTicks(Value, frozen=True):
    """Ticks that are not fired: from `first` to `last`, `count` of them, None if not counted."""

    first: int
    last: int
    count: int | None
    cause: SkipCause


class Firing(Value, frozen=True, kw_only=True):
    """Move a schedule from the tick that it is expected at to the next one.

    `ticks` are fired in their order, `skipped` recorded. All ticks up to `position` are dealt with
    then, and the next is `next_tick_at` (None: there is none). With `error`, nothing is fired, and
    the schedule is looked at again later.
    """

    name: str
    revision: int
    expected: int | None
    position: int
    next_tick_at: int | None
    ticks: Sequence[int] = ()
    skipped: Sequence[SkippedTicks] = ()
    error: str | None = None


class BackfillFiring(Value, frozen=True, kw_only=True):
    """Move a backfill on to `new_position`, firing ticks; with `error`, the backfill ends."""

    backfill_id: UUID
    position: int
    new_position: int
    ticks: Sequence[int] = ()
    error: str | None = None


class Fired(Value, frozen=True):
    """What became of firings. `moved` are the schedules that were at the expected tick.

    The others were handled by another process, or have been paused, changed or deleted meanwhile.
    """

    now: int
    moved: frozenset[str]
    notices: Sequence[Notice]


class EnsuredSchedules(Value, frozen=True):
    """What became of the schedules that the code of an app has.

    `current`: they are the ones that the database has. `written`: they were made so; `added`,
    `changed` and `resumed` were, and `paused` are those that the code no longer has.
    `superseded`: workers with newer code are running, and nothing was changed.
    """

    status: Literal["current", "written", "superseded"]
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()


def schedules_digest(schedules: Iterable[NewSchedule]) -> str:
    """Return what stands for all schedules of an app's code together, in any order."""
    digests = sorted(each.digest for each in schedules)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def tick_text(at: int) -> str:
    """Write a tick in UTC, with microseconds if it has any.

    >>> tick_text(1_767_225_600_000_000), tick_text(1_767_225_600_000_250)
    ('2026-01-01T00:00:00Z', '2026-01-01T00:00:00.000250Z')
    """
    moment = to_datetime(at)
    return moment.isoformat(timespec="microseconds" if at % 1_000_000 else "seconds")[:-6] + "Z"


def tick_key(schedule: str, at: int) -> str:
    """Return the key of the run that a tick starts: it follows from the schedule and the tick.

    >>> tick_key("shop/nightly", 1_767_225_600_000_000)
    'shop/nightly@2026-01-01T00:00:00Z'
    """
    return f"{schedule}@{tick_text(at)}"


def tick_event(schedule: str, at: int) -> str:
    """Return the id of the event that a tick publishes: its key, or a digest of one too long.

    >>> tick_event("shop/hourly", 1_767_225_600_000_000)
    'shop/hourly@2026-01-01T00:00:00Z'
    """
    key = tick_key(schedule, at)
    return key if len(key) <= 255 else hashlib.sha256(key.encode()).hexdigest()


def tick_headers(headers: Mapping[str, str] | None, schedule: str, at: int) -> dict[str, str]:
    """Return the headers of what a tick starts or sends: which schedule, and which tick."""
    return {**(headers or {}), SCHEDULE_HEADER: schedule, TICK_HEADER: tick_text(at)}


def read_tick(headers: Mapping[str, str] | None) -> datetime | None:
    """Return the tick that started a run, from the run's headers; None if no schedule did.

    >>> read_tick({TICK_HEADER: "2026-01-01T00:00:00Z"})
    datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    text = (headers or {}).get(TICK_HEADER)
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:  # not a schedule's: a client has made it up
        return None


def tick_jitter(schedule: str, at: int, jitter_seconds: float) -> float:
    """Return by how many seconds the run of a tick starts later: at least 0, less than the jitter.

    >>> 0 <= tick_jitter("shop/nightly", 1_767_225_600_000_000, 60) < 60
    True
    """
    digest = hashlib.sha256(tick_key(schedule, at).encode()).digest()
    return int.from_bytes(digest[:6]) / (1 << 48) * jitter_seconds
