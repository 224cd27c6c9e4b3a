"""Schedules: their options with checks, and what an app schedules in its code."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypedDict, TypeVar, get_args

from holdfast.definitions.options import AnyRunOptions, check_options, option_seconds
from holdfast.definitions.senders import check_sender, default_policy, send_target
from holdfast.definitions.startable import Startable
from holdfast.errors import ConfigurationError, PayloadError
from holdfast.types import (
    MOST_MISSED,
    PRIORITIES,
    NewSchedule,
    Overlap,
    RunTarget,
    Target,
    TickPolicy,
    When,
)
from holdfast.values.attributes import check_attributes
from holdfast.values.durations import Duration, seconds
from holdfast.values.moments import Moment, checked_micros, to_datetime
from holdfast.values.names import check_queue_name, check_schedule_name, full_name
from holdfast.values.numbers import true_or_false, whole_number
from holdfast.values.texts import check_headers, check_tags, check_text

Defined = TypeVar("Defined", bound=Startable[Any, Any])


class ScheduleOptions(TypedDict, total=False):
    """Options of any schedule: when it fires, and what becomes of its ticks.

    A moment is a datetime with a time zone, or ISO 8601, which without an offset is read in
    `timezone`. Durations are seconds, a text such as `"5m"`, or a `timedelta`.
    """

    every: Duration
    """In place of a cron expression: fire at this interval, a second or more."""
    anchor: Moment
    """A moment from which `every` counts; by default `start`, else 1970-01-01 00:00 UTC."""
    timezone: str
    """The IANA name of the time zone in which the cron expression is read; UTC."""
    start: Moment
    """No tick is before this moment."""
    end: Moment
    """No tick is after this moment."""
    overlap: Overlap
    """What a tick does while a run of the schedule has not ended: `skip` unless given."""
    catch_up: Duration
    """How late a tick may fire, if no worker could fire it in time; a day."""
    max_missed: int
    """How many of the ticks that no worker could fire in time are made up for; 1."""
    jitter: Duration
    """Start each run up to this much later, by a time that is the same for the same tick; 0."""
    bucket_retention: Duration
    """How long it is kept what each tick did; 30 days."""
    note: str | None
    """A note for people."""
    paused: bool
    """Create it paused. It does not change whether a schedule that exists is paused."""


class MessageScheduleOptions(ScheduleOptions, total=False):
    """Options of a schedule that sends messages."""

    group: str | None
    """The group of each message in a FIFO queue; by default the schedule's name."""
    priority: int | None
    """From 0 (most urgent) to 4 (least), in a queue with priorities; 2."""
    headers: Mapping[str, str] | None
    """Texts that each message has beside its payload."""


class StartedOptions(AnyRunOptions, total=False):
    """Options of the runs that something in an app's code starts."""

    retention: Duration | None
    """How long after its end each run is kept; by default the workflow's."""


class AppScheduleOptions(StartedOptions, ScheduleOptions, total=False):
    """Options of `app.schedule`, those of the runs included."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule that the code of an app has. `full_name` is `app/name`.

    `definition` is what it starts, None if it publishes or sends. `new` is what workers write to
    the database when they start.
    """

    definition: Startable[Any, Any] | None
    new: NewSchedule

    @property
    def full_name(self) -> str:
        """The name that it has in the database, `app/name`."""
        return self.new.name

    def next_ticks(self, count: int = 1, *, after: datetime | None = None) -> list[datetime]:
        """Return the first moments at which it fires, after now or after a moment, in UTC.

        They are fewer if the schedule ends.

        ```python
        nightly = app.schedule(report, "0 3 * * *")
        assert nightly.next_ticks(after=datetime(2030, 1, 1, tzinfo=UTC))[0].hour == 3
        ```
        """
        from holdfast.schedules import next_ticks

        moment = checked_micros(datetime.now(UTC) if after is None else after)
        return [to_datetime(tick) for tick in next_ticks(self.new.when, moment, count)]


class ScheduleDecorator(Protocol):
    """The decorator that `app.schedule("…")` returns: it gives the workflow back as it is."""

    def __call__(self, definition: Defined, /) -> Defined: ...


def define_schedule(
    app: str,
    definition: Startable[Any, Any],
    cron: str | None,
    name: str | None,
    input: object,
    options: AppScheduleOptions,
) -> Schedule:
    """Make a schedule of an app. Raises ConfigurationError and PayloadError, with its name."""
    # Callers without a type checker pass anything.
    if not isinstance(definition, Startable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"a schedule is of a workflow or a flow, not of {definition!r}: write "
            "@app.schedule(…) above @app.workflow, or app.schedule(flow, …)"
        )
    full = full_name(app, check_schedule_name(definition.name if name is None else name))
    check_options(options, AppScheduleOptions.__annotations__, f"schedule {full}")
    with in_schedule(full):
        target = run_target(definition, definition.encode_input(input), options)
    return Schedule(definition, make_schedule(full, target, cron, options))


def define_sender(
    app: str,
    topic: str | None,
    message_queue: str | None,
    cron: str | None,
    name: str | None,
    input: object,
    options: MessageScheduleOptions,
) -> Schedule:
    """Make a schedule that publishes or sends. Raises ConfigurationError and PayloadError."""
    named = topic or message_queue or "" if name is None else name
    full = full_name(app, check_schedule_name(named))
    check_options(options, MessageScheduleOptions.__annotations__, f"schedule {full}")
    with in_schedule(full):
        target = send_target(topic, message_queue, input, options)
    return Schedule(None, make_schedule(full, target, cron, options))


def make_schedule(
    name: str, target: Target, cron: str | None, options: ScheduleOptions
) -> NewSchedule:
    """Return a schedule to create. Raises ConfigurationError and InvalidInput with its name."""
    with in_schedule(name):
        note, paused = options.get("note"), options.get("paused")
        return check_sender(
            NewSchedule(
                name=name,
                when=read_when(cron, options),
                target=target,
                policy=read_policy(options, default_policy(target)),
                note=None if note is None else check_text("note", note),
                paused=False if paused is None else true_or_false(paused, "paused"),
            )
        )


def read_when(cron: str | None, options: ScheduleOptions) -> When:
    """Return when a schedule fires. Raises ConfigurationError."""
    from holdfast.schedules import parse_when  # with zones and cron, for apps that have schedules

    return parse_when(
        cron,
        every=options.get("every"),
        anchor=options.get("anchor"),
        timezone=options.get("timezone", "UTC"),
        start=options.get("start"),
        end=options.get("end"),
    )


def read_policy(options: ScheduleOptions, known: TickPolicy) -> TickPolicy:
    """Return what becomes of ticks; what the options do not say is as in `known`.

    Raises ConfigurationError.
    """
    overlap = options.get("overlap", known.overlap)
    max_missed = options.get("max_missed", known.max_missed)
    if overlap not in get_args(Overlap):
        raise ConfigurationError(f"overlap: it is {', '.join(get_args(Overlap))}, not {overlap!r}")
    # Callers without a type checker pass anything.
    if type(max_missed) is not int or not 0 <= max_missed <= MOST_MISSED:
        raise ConfigurationError(
            f"max_missed: a whole number from 0 to {MOST_MISSED:,} is needed, not {max_missed!r}"
        )
    return TickPolicy(
        overlap=overlap,
        catch_up_seconds=_seconds("catch_up", options, known.catch_up_seconds),
        max_missed=max_missed,
        jitter_seconds=_seconds("jitter", options, known.jitter_seconds),
        bucket_retention_seconds=_seconds(
            "bucket_retention", options, known.bucket_retention_seconds
        ),
    )


@contextmanager
def in_schedule(name: str) -> Generator[None]:
    """Name the schedule in each ConfigurationError and PayloadError of the block."""
    try:
        yield
    except (ConfigurationError, PayloadError) as error:
        raise type(error)(f"schedule {name}: {error}") from None


def run_target(definition: Startable[Any, Any], input: str, options: StartedOptions) -> RunTarget:
    """Return the run to start of a workflow or flow; `input` is JSON text.

    Raises ConfigurationError for options that cannot work.
    """
    priority, timeout = options.get("priority"), options.get("timeout")
    retention, queue = options.get("retention"), options.get("queue")
    if priority is None:
        priority = definition.priority
    return RunTarget(
        kind=definition.kind,
        name=definition.full_name,
        version=definition.version,
        input=input,
        queue=definition.queue if queue is None else check_queue_name(queue),
        priority=whole_number(priority, "a run", "priority", 0, PRIORITIES[-1]),
        timeout_seconds=definition.timeout_seconds
        if timeout is None
        else option_seconds(timeout, "a run", "timeout"),
        retention_seconds=definition.retention_seconds
        if retention is None
        else option_seconds(retention, "a run", "retention"),
        tags=check_tags(options.get("tags", ())),
        headers=check_headers(options.get("headers")),
        attributes=check_attributes(options.get("attributes")),
    )


def _seconds(name: str, options: Mapping[str, Any], known: float) -> float:
    length = options.get(name)
    if length is None:
        return known
    try:
        return seconds(length)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None
