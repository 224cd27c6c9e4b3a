"""Read the options of schedules, and what a change leaves of a schedule that there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from holdfast.client.session import Session
from holdfast.definitions.app import App
from holdfast.definitions.options import AnyRunOptions
from holdfast.definitions.schedules import ScheduleOptions, read_policy
from holdfast.definitions.senders import check_sender, send_target
from holdfast.definitions.starts import PreparedStart
from holdfast.errors import ConfigurationError, InvalidInput, UnknownSchedule
from holdfast.store.port import iterate_schedules
from holdfast.types import NewSchedule, RunTarget, ScheduleRecord, SendTarget, Target, When
from holdfast.values.composing import compose
from holdfast.values.durations import Duration
from holdfast.values.moments import Moment, maybe_datetime
from holdfast.values.names import check_reference, check_schedule_name, full_name, split_name
from holdfast.values.suggestions import similar_name
from holdfast.values.texts import check_text


class RunsOfSchedule(AnyRunOptions, total=False):
    """Options of the runs that a schedule starts; by default those of the workflow."""

    version: int | None
    """The workflow's version; by default the newest that this program knows."""
    retention: Duration | None
    """How long after its end each run is kept; HOLDFAST_MAX_RETENTION_DAYS (365) at most."""


class CreateScheduleOptions(RunsOfSchedule, ScheduleOptions, total=False):
    """Options of `client.schedules.create`."""


class AnyScheduleOptions(CreateScheduleOptions, total=False):
    """All options of `client.schedules.create`; some fit only one kind of target."""

    group: str | None
    """The group of each message."""


class UpdateScheduleOptions(RunsOfSchedule, ScheduleOptions, total=False):
    """Options of `client.schedules.update`: what is left out stays as it is."""

    input: object
    """Another input of each run, or another payload."""
    group: str | None
    """Another group of each message."""


T = TypeVar("T")

RUN_OPTIONS: Final = frozenset(RunsOfSchedule.__annotations__)
_WHEN_OPTIONS: Final = frozenset({"every", "anchor", "timezone", "start", "end"})
_FIELDS: Final = {  # of a target, by the option that sets it
    "version": "version",
    "queue": "queue",
    "priority": "priority",
    "timeout": "timeout_seconds",
    "retention": "retention_seconds",
    "tags": "tags",
    "attributes": "attributes",
    "headers": "headers",
}


def full_schedule_name(name: str, app: App | None, target: Target) -> str:
    """Return the full name of a new schedule: of the client's app, else of the workflow's.

    Raises InvalidInput for a name alone that belongs to no app.
    """
    if "/" in check_reference("a schedule", name):
        return name
    if app is None and isinstance(target, SendTarget):
        raise InvalidInput(f"schedule {name}: write APP/{name}, as the client has no app")
    of = split_name(target.name)[0] if app is None else app.name
    return full_name(of, check_schedule_name(name))


async def find_schedule(session: Session, name: str) -> str:
    """Return the full name of a schedule: of the client's app, else of the one app that has it.

    Raises UnknownSchedule if no app has it, and InvalidInput if several have.
    """
    if "/" in check_reference("a schedule", name):
        return name
    if session.app is not None:
        own = full_name(session.app.name, name)
        if await session.store.get_schedule(own) is not None:
            return own
    found = [each.name async for each in iterate_schedules(session.store, short_name=name)]
    if len(found) > 1:
        raise InvalidInput(f"several apps have a schedule {name}: name one of {', '.join(found)}")
    if not found:
        known = [each.name async for each in iterate_schedules(session.store)]
        near = similar_name(name, [split_name(each)[1] for each in known])
        raise UnknownSchedule(name, near)
    return found[0]


def known_schedule(name: str, found: T | None) -> T:
    """Return what a call about a schedule has found. Raises UnknownSchedule if it is not there."""
    if found is None:
        raise UnknownSchedule(name)
    return found


def new_target(prepared: PreparedStart, input: str) -> RunTarget:
    """Return what each tick or event starts; `input` is JSON text."""
    template = prepared.template
    return compose(RunTarget, template, version=template.version or None, input=input)


def changed_target(
    known: RunTarget, prepared: PreparedStart, options: UpdateScheduleOptions
) -> RunTarget:
    """Return what each tick starts after a change. Raises InvalidInput and PayloadError."""
    changes = {
        field: getattr(prepared.template, field)
        for option, field in _FIELDS.items()
        if option in options
    }
    if "input" in options:
        changes["input"] = prepared.encode(options["input"])
    return msgspec.structs.replace(known, **changes)


def refuse_group(options: Mapping[str, object]) -> None:
    """Raise ConfigurationError for an option of messages that a schedule of runs was given."""
    if options.get("group") is not None:
        raise ConfigurationError("group: an option of messages, and this schedule starts runs")


def changed_sender(known: SendTarget, options: UpdateScheduleOptions) -> SendTarget:
    """Return what each tick publishes or sends after a change.

    Raises ConfigurationError, InvalidInput and PayloadError.
    """
    fields = {"group": known.group, "priority": known.priority, "headers": known.headers}
    topic, queue = (known.name, None) if known.kind == "topic" else (None, known.name)
    changed = send_target(topic, queue, options.get("input"), {**fields, **options})
    return changed if "input" in options else msgspec.structs.replace(changed, input=known.input)


def changed_schedule(
    record: ScheduleRecord, target: Target, cron: str | None, options: UpdateScheduleOptions
) -> NewSchedule:
    """Return a schedule with changes. Raises ConfigurationError and InvalidInput."""
    note = options.get("note", record.note)
    return check_sender(
        NewSchedule(
            name=record.name,
            when=_changed_when(record.when, cron, options),
            target=target,
            policy=read_policy(options, record.policy),
            note=None if note is None else check_text("note", note),
        )
    )


def _changed_when(known: When, cron: str | None, options: UpdateScheduleOptions) -> When:
    if cron is None and not _WHEN_OPTIONS & options.keys():
        return known
    from holdfast.schedules import parse_when

    every = options.get("every")
    if cron is None and every is None:
        cron, every = known.cron, known.every_seconds
    return parse_when(
        cron,
        every=every,
        anchor=options.get("anchor", None if every is None else maybe_datetime(known.anchor)),
        timezone=options.get("timezone", known.timezone),
        start=options.get("start", maybe_datetime(known.starts_at)),
        end=options.get("end", maybe_datetime(known.ends_at)),
    )


def read_tick(name: str, moment: Moment, when: When) -> int:
    """Return a moment in microseconds; a text without an offset is read in the schedule's zone.

    Raises InvalidInput, which names the parameter.
    """
    from holdfast.schedules import parse_moment

    try:
        return parse_moment(moment, when.timezone)
    except ConfigurationError as error:
        raise InvalidInput(f"{name}: {error}") from None
