"""Operations about builds: list, promote, ramp and roll back; move runs between them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from holdfast.errors import UnknownBuild
from holdfast.server.api.fields import Changed
from holdfast.server.operations import Body, Call, ForAgents, Nothing, Operation, Query
from holdfast.types import MoveOutcome, RouteChange
from holdfast.values.composing import shaped

AppName = Annotated[str, Meta(min_length=1, max_length=128)]
BuildName = Annotated[str, Meta(min_length=1, max_length=128)]
RunIds = Annotated[tuple[UUID, ...], Meta(min_length=1, max_length=500)]


class BuildShape(msgspec.Struct, frozen=True, kw_only=True):
    """A build of an app, and who needs it; see `holdfast builds list`."""

    app: str
    build: str
    is_current: bool
    ramp_percent: float | None
    open_runs: int
    workers: int
    needed_for: tuple[str, ...]
    safe_to_stop: bool
    pinned: tuple[str, ...]
    first_known_at: datetime
    signed_on_at: datetime | None


class BuildList(msgspec.Struct, frozen=True):
    """The builds of apps, the newest first within an app."""

    builds: list[BuildShape]


class BuildQuery(Query, frozen=True):
    """Of which app; all by default."""

    app: AppName | None = None


class Promotion(Body, frozen=True):
    """The build that new runs are to get; with `force` also one that no worker had yet."""

    build: BuildName
    app: AppName | None = None
    force: bool = False


class Ramp(Body, frozen=True):
    """The build that a share of new runs is to get; 0 ends the ramp."""

    build: BuildName
    percent: Annotated[float, Meta(ge=0, le=100)]
    app: AppName | None = None


class RollBack(Body, frozen=True):
    """Of which app; without a name the only one that has builds."""

    app: AppName | None = None


class Move(Body, frozen=True):
    """Runs that are to move to another build of their app; null: they are not pinned any more."""

    run_ids: RunIds
    build: BuildName | None


class Moved(msgspec.Struct, frozen=True):
    """What became of each run, by id."""

    outcomes: dict[UUID, MoveOutcome]


async def list_builds(call: Call[BuildQuery, None]) -> BuildList:
    """List the builds of apps: which is current, and what needs each of them."""
    found = await call.site.reader.builds.list(app=call.query.app)
    return BuildList([shaped(BuildShape, each) for each in found])


async def promote_build(call: Call[Nothing, Promotion]) -> Changed:
    """Let new runs of pinned workflows get a build."""
    body = call.body
    builds = call.site.client.builds
    return Changed(await builds.promote(body.build, app=body.app, force=body.force))


async def ramp_build(call: Call[Nothing, Ramp]) -> Changed:
    """Let a share of new runs get a build."""
    body = call.body
    return Changed(await call.site.client.builds.ramp(body.build, body.percent, app=body.app))


async def roll_back_build(call: Call[Nothing, RollBack]) -> RouteChange:
    """End the ramp, or let new runs get the build that they got before."""
    return await call.site.client.builds.roll_back(app=call.body.app)


async def move_to_build(call: Call[Nothing, Move]) -> Moved:
    """Move runs to another build of their app."""
    moved = await call.site.client.builds.move(call.body.run_ids, call.body.build)
    return Moved(moved.outcomes)


OPERATIONS: Final = (
    Operation(
        "GET /v1/builds",
        "read",
        list_builds,
        tool=ForAgents(about="List the builds of apps, and which runs and workers each has."),
    ),
    Operation("POST /v1/builds/promote", "admin", promote_build, problems=(UnknownBuild,)),
    Operation("POST /v1/builds/ramp", "admin", ramp_build, problems=(UnknownBuild,)),
    Operation("POST /v1/builds/roll-back", "admin", roll_back_build),
    Operation("POST /v1/builds/move", "admin", move_to_build),
)
