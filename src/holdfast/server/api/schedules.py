"""Operations of schedules: look at them, create, pause, trigger and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta

from holdfast.client import ScheduleInfo
from holdfast.codec import raw
from holdfast.errors import (
    AmbiguousWorkflow,
    ScheduleChanged,
    ScheduleExists,
    UnknownQueue,
    UnknownSchedule,
    UnknownWorkflow,
)
from holdfast.server.api.fields import Attributes, Changed, Length, Moment, Name, Reason, Tags, Text
from holdfast.server.api.filters import OfWorkflow
from holdfast.server.operations import Body, Call, Nothing, Operation, Query, Reply
from holdfast.types import (
    AttributeValue,
    Overlap,
    PausedBy,
    RunKind,
    SendKind,
    SkipCause,
    TickOrigin,
    TickOutcome,
    TickPolicy,
)
from holdfast.values.composing import shaped

_NO_ID: Final = UUID(int=0)


class WhenShape(msgspec.Struct, frozen=True, kw_only=True):
    """At which moments a schedule comes due: `cron` in a time zone, or an interval."""

    cron: str | None
    every_seconds: float | None
    timezone: str


class TargetShape(msgspec.Struct, frozen=True, kw_only=True):
    """What each tick starts, or the topic or message queue to which it sends `input`.

    `queue`, `tags` and `attributes` are of runs, `group` and `headers` of messages.
    """

    kind: RunKind | SendKind
    name: str
    version: int | None = None
    input: msgspec.Raw | None
    queue: str | None = None
    priority: int | None
    tags: tuple[str, ...] = ()
    attributes: Mapping[str, AttributeValue] = {}
    group: str | None = None
    headers: Mapping[str, str] | None = None


class ScheduleShape(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule."""

    name: str
    when: WhenShape
    target: TargetShape
    policy: TickPolicy
    from_code: bool
    created_at: datetime
    updated_at: datetime
    note: str | None
    paused_at: datetime | None
    paused_by: PausedBy | None
    next_tick_at: datetime | None
    last_tick_at: datetime | None
    last_run_id: UUID | None
    open_run_ids: tuple[UUID, ...]
    buffered: int
    backfills: int
    error: str | None
    next_ticks: list[datetime] = []


class ScheduleList(msgspec.Struct, frozen=True):
    """Schedules by name; with `after` the name of the last one, the list continues."""

    schedules: list[ScheduleShape]


class TickShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a tick did."""

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


class TickList(msgspec.Struct, frozen=True):
    """What the ticks of a schedule did, newest first."""

    ticks: list[TickShape]


class ScheduleQuery(Query, frozen=True):
    """Which schedules: those of an app, after a name."""

    app: Name | None = None
    after: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class TicksQuery(OfWorkflow, frozen=True):
    """Which ticks: those before a moment."""

    before: Moment | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class NewScheduleBody(Body, frozen=True):
    """A schedule: `cron` or `every`, and what each tick starts.

    That is a `workflow`; or each tick publishes to a `topic` or sends to a `message_queue`, and
    `input` is the payload. `group` and `headers` are of messages, `queue`, `tags` and
    `attributes` of runs.
    """

    name: Name
    workflow: Name | None = None
    topic: Name | None = None
    message_queue: Name | None = None
    cron: Annotated[str, Meta(max_length=200)] | None = None
    every: Length | None = None
    timezone: Annotated[str, Meta(max_length=100)] | None = None
    input: Any = None
    overlap: Overlap | None = None
    catch_up: Length | None = None
    jitter: Length | None = None
    queue: Name | None = None
    priority: Annotated[int, Meta(ge=0, le=4)] | None = None
    tags: Tags | None = None
    attributes: Attributes | None = None
    group: Name | None = None
    headers: dict[str, str] | None = None
    paused: bool | None = None
    note: Text | None = None


class TriggerBody(Body, frozen=True):
    """The moment of the tick, by default now, and what it does if a run has not ended."""

    at: Moment | None = None
    overlap: Overlap | None = None


class BackfillBody(Body, frozen=True):
    """A range of the past, both ends included."""

    start: Moment
    end: Moment
    overlap: Overlap | None = None


async def list_schedules(call: Call[ScheduleQuery, None]) -> ScheduleList:
    """List schedules by name."""
    query = call.query
    found = await call.site.reader.schedules.list(
        app=query.app, after=query.after, limit=query.limit
    )
    return ScheduleList([_schedule(each) for each in found])


async def get_schedule(call: Call[OfWorkflow, None]) -> ScheduleShape:
    """Return a schedule, with its next ticks."""
    found = await call.site.reader.schedules.get(call.full_name)
    ticks = found.next_ticks(5, after=datetime.now(UTC)) if found.error is None else []
    return _schedule(found, ticks)


async def list_ticks(call: Call[TicksQuery, None]) -> TickList:
    """Return what the ticks of a schedule did, newest first."""
    found = await call.site.reader.schedules.ticks(
        call.full_name, before=call.query.before, limit=call.query.limit
    )
    return TickList([shaped(TickShape, each) for each in found])


async def create_schedule(call: Call[Nothing, NewScheduleBody]) -> Reply:
    """Create a schedule that starts a workflow or a flow, publishes or sends."""
    given = msgspec.structs.asdict(call.body)
    name, input = given.pop("name"), given.pop("input")
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    created = await call.site.client.schedules.create(name, input=input, **options)
    return Reply(_schedule(created), 201)


async def delete_schedule(call: Call[OfWorkflow, None]) -> Changed:
    """Delete a schedule; runs that it started continue."""
    await call.site.client.schedules.delete(call.full_name)
    return Changed(True)


async def pause_schedule(call: Call[OfWorkflow, Reason]) -> Changed:
    """Let a schedule's ticks pass without starting runs; the reason is its note."""
    client = call.site.client
    return Changed(await client.schedules.pause(call.full_name, call.body.reason))


async def resume_schedule(call: Call[OfWorkflow, None]) -> Changed:
    """Let a schedule fire again, from its next tick on."""
    return Changed(await call.site.client.schedules.resume(call.full_name))


async def trigger_schedule(call: Call[OfWorkflow, TriggerBody]) -> TickShape:
    """Fire a schedule now, also if it is paused; return what that tick did.

    With `at`, the same call again is the same tick.
    """
    tick = await call.site.client.schedules.trigger(
        call.full_name, at=call.body.at, overlap=call.body.overlap
    )
    return shaped(TickShape, tick)


async def backfill_schedule(call: Call[OfWorkflow, BackfillBody]) -> Changed:
    """Fire the ticks of a range of the past; a worker does so soon.

    With an Idempotency-Key it is done once.
    """
    body, key = call.body, call.idempotency_key
    asked = await call.site.client.schedules.backfill(
        call.full_name,
        body.start,
        body.end,
        overlap=body.overlap,
        backfill_id=None if key is None else uuid5(_NO_ID, f"backfill {key}"),
    )
    return Changed(asked)


def _schedule(info: ScheduleInfo, ticks: list[datetime] | None = None) -> ScheduleShape:
    target = shaped(TargetShape, info.target, input=raw(info.target.input))
    when = shaped(WhenShape, info.when)
    return shaped(ScheduleShape, info.record, when=when, target=target, next_ticks=ticks or [])


_UNKNOWN: Final = (UnknownSchedule,)

OPERATIONS: Final = (
    Operation("GET /v1/schedules", "read", list_schedules),
    Operation(
        "POST /v1/schedules",
        "write",
        create_schedule,
        answers=(ScheduleShape,),
        statuses=(201,),
        problems=(ScheduleExists, UnknownWorkflow, AmbiguousWorkflow, UnknownQueue),
    ),
    Operation("GET /v1/schedules/{name}", "read", get_schedule, problems=_UNKNOWN),
    Operation("DELETE /v1/schedules/{name}", "write", delete_schedule, problems=_UNKNOWN),
    Operation("GET /v1/schedules/{name}/ticks", "read", list_ticks, problems=_UNKNOWN),
    Operation(
        "POST /v1/schedules/{name}/pause",
        "write",
        pause_schedule,
        body_required=False,
        problems=_UNKNOWN,
    ),
    Operation("POST /v1/schedules/{name}/resume", "write", resume_schedule, problems=_UNKNOWN),
    Operation(
        "POST /v1/schedules/{name}/trigger",
        "write",
        trigger_schedule,
        body_required=False,
        problems=_UNKNOWN,
    ),
    Operation(
        "POST /v1/schedules/{name}/backfill",
        "write",
        backfill_schedule,
        problems=(*_UNKNOWN, ScheduleChanged),
        keyed=True,
    ),
)
