"""Builds: which code new runs of pinned workflows get, and stay with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from holdfast.errors import InvalidInput
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.database import Part
from holdfast.store.memory.rows import TURN, BuildRow, Parent, RouteRow
from holdfast.store.memory.tables import Tables, distinct, is_heard
from holdfast.store.port import WORK_TOPIC
from holdfast.types import BuildInfo, MovedRuns, MoveOutcome, NewRun, Notice, RouteChange
from holdfast.types.work import SILENT_SECONDS
from holdfast.values.names import split_name, turn_handler

_KEPT: Final = to_micros(30 * 86_400)  # a build that nothing needs, after its last worker signed on
_SILENT: Final = to_micros(SILENT_SECONDS)
_MOST_FORMER: Final = 20


class MemoryBuilds(Part):
    async def declare_build(self, app: str, build: str, pinned: Sequence[str]) -> None:
        async with self._transaction() as (tables, now):
            known = tables.builds.get((app, build))
            first_known_at = now if known is None else known.first_known_at
            of_app = tables.apps.get(app)
            signed_on_at = now if of_app is None else max(now, of_app.signed_on_at)
            tables.builds[app, build] = BuildRow(tuple(pinned), first_known_at, signed_on_at)
            route = tables.build_routes.setdefault(app, RouteRow(build))
            for (of, name), row in list(tables.builds.items()):
                if (
                    of == app
                    and row.signed_on_at is not None
                    and row.signed_on_at < now - _KEPT
                    and name not in (route.current, route.ramped, *route.former)
                    and not _open_runs(tables, app, name)
                    and not _workers(tables, now, name, row)
                ):
                    del tables.builds[of, name]

    async def kept_declarations(self, app: str, build: str | None) -> Sequence[str] | None:
        async with self._transaction() as (tables, now):
            route = tables.build_routes.get(app)
            if route is None:
                return None
            current = tables.builds.get((app, route.current or ""))
            if route.current == build or current is None or route.current is None:
                return ()
            if not _workers(tables, now, route.current, current):
                return ()
            return sorted(each for each in tables.declared_options if each.startswith(f"{app}/"))

    async def list_builds(self, app: str | None = None) -> list[BuildInfo]:
        async with self._transaction() as (tables, now):
            found: list[BuildInfo] = []
            for (of, name), row in tables.builds.items():
                route = tables.build_routes.get(of) or RouteRow()
                if app in (None, of):
                    found.append(
                        BuildInfo(
                            app=of,
                            build=name,
                            is_current=name == route.current,
                            ramp_percent=route.ramp_percent if name == route.ramped else None,
                            open_runs=len(_open_runs(tables, of, name)),
                            workers=_workers(tables, now, name, row),
                            needed_for=_needed_for(tables, now, of, name, row),
                            pinned=row.pinned,
                            first_known_at=row.first_known_at,
                            signed_on_at=row.signed_on_at,
                        )
                    )
            return sorted(found, key=lambda each: (each.app, -each.first_known_at, each.build))

    async def promote_build(self, app: str, build: str, *, force: bool = False) -> RouteChange:
        async with self._transaction() as (tables, now):
            route = tables.build_routes.get(app) or RouteRow()
            former = route.current
            if (app, build) not in tables.builds:
                if not force:
                    return RouteChange("unknown", former)
                pinning = tables.builds.get((app, former or ""))
                pinned = () if pinning is None else pinning.pinned
                tables.builds[app, build] = BuildRow(pinned, now, None)
            if former == build and route.ramped is None:
                return RouteChange("same", former)
            if former not in (None, build):
                route.former = [*route.former, former][-_MOST_FORMER:]
            route.current, route.ramped, route.ramp_percent = build, None, 0.0
            tables.build_routes[app] = route
            return RouteChange("changed", former)

    async def ramp_build(self, app: str, build: str, percent: float) -> RouteChange:
        if not 0 <= percent <= 100:
            raise InvalidInput(f"a share of new runs is from 0 to 100 percent, not {percent:g}")
        async with self._transaction() as (tables, _):
            if (app, build) not in tables.builds:
                return RouteChange("unknown")
            route = tables.build_routes[app]
            if build == route.current:
                return RouteChange("current")
            if (percent, build if percent else route.ramped) == (route.ramp_percent, route.ramped):
                return RouteChange("same")
            if not percent and build != route.ramped:
                return RouteChange("same")
            route.ramped, route.ramp_percent = build if percent else None, percent
            return RouteChange("changed")

    async def roll_back_build(self, app: str) -> RouteChange:
        async with self._transaction() as (tables, _):
            route = tables.build_routes.get(app) or RouteRow()
            former = route.ramped or route.current
            if route.ramped is not None:
                route.ramped, route.ramp_percent = None, 0.0
                return RouteChange("ramp", former, route.current)
            if route.current is None:
                return RouteChange("none")
            route.current = route.former.pop() if route.former else None
            return RouteChange("changed", former, route.current)

    async def move_to_build(self, run_ids: Sequence[UUID], build: str | None) -> MovedRuns:
        async with self._transaction() as (tables, _):
            outcomes: dict[UUID, MoveOutcome] = {
                run_id: _judge(tables, run_id, build) for run_id in sorted(set(run_ids))
            }
            moved = [run_id for run_id, outcome in outcomes.items() if outcome == "moved"]
            for run_id in moved:
                set_build(tables, run_id, build)
            queues = [tables.runs[each].queue for each in moved if tables.is_running(each)]
            return MovedRuns(outcomes, distinct([Notice(WORK_TOPIC, queue) for queue in queues]))

    async def runs_of_build(
        self, app: str, build: str, *, after: UUID | None = None, limit: int = 1_000
    ) -> list[UUID]:
        async with self._transaction() as (tables, _):
            found = sorted(_open_runs(tables, app, build))
            return [run_id for run_id in found if after is None or run_id > after][:limit]


def build_of_start(tables: Tables, new: NewRun, parent: Parent | None = None) -> str | None:
    """Return the build that a new run stays with: its parent's, else what its app's route says."""
    app, _ = split_name(new.name)
    build = None
    if parent is not None and (row := tables.runs.get(parent.run_id)) is not None:
        build = row.build if split_name(row.new.name)[0] == app else None
    route = tables.build_routes.get(app)
    if build is None and route is not None:
        in_ramp = _percentile(new.run_id) < route.ramp_percent
        build = route.ramped if in_ramp else route.current
    known = tables.builds.get((app, build or ""))
    handler = turn_handler(new.name, new.version, None)
    return build if known is not None and handler in known.pinned else None


def set_build(tables: Tables, run_id: UUID, build: str | None) -> None:
    """Let a run stay with a build."""
    tables.runs[run_id].build = build
    if (turn := tables.tasks.get((run_id, TURN))) is not None:
        turn.build, turn.sticky_worker = build, None


def _percentile(run_id: UUID) -> float:
    """Return where a run stands in a ramp, from 0 to below 100."""
    return int.from_bytes(hashlib.sha256(run_id.bytes).digest()[:4], "big") * 100 / 2**32


def _judge(tables: Tables, run_id: UUID, build: str | None) -> MoveOutcome:
    row = tables.runs.get(run_id)
    if row is None:
        return "missing"
    if row.is_flow:
        return "flow"
    if row.build == build:
        return "same"
    if build is None:
        return "moved"
    known = tables.builds.get((split_name(row.new.name)[0], build))
    if known is None:
        return "unknown"
    return "moved" if row.handler in known.pinned else "unfit"


def _open_runs(tables: Tables, app: str, build: str) -> list[UUID]:
    return [
        run_id
        for run_id, row in tables.runs.items()
        if row.build == build and row.status == "running" and row.new.name.startswith(f"{app}/")
    ]


def _workers(tables: Tables, now: int, build: str, row: BuildRow) -> int:
    wanted = {f"{handler}+{build}" for handler in row.pinned}
    return sum(
        is_heard(each.heard_at, now, _SILENT) and not wanted.isdisjoint(each.handlers)
        for each in tables.workers.values()
    )


def _needed_for(tables: Tables, now: int, app: str, build: str, row: BuildRow) -> tuple[str, ...]:
    """Return handlers with open work that no live worker serves but those of a build."""
    own = {f"{handler}+{build}" for handler in row.pinned}
    mine: set[tuple[str, str]] = set()
    others: set[tuple[str, str]] = set()
    for each in tables.workers.values():
        if is_heard(each.heard_at, now, _SILENT):
            places = mine if own.intersection(each.handlers) else others
            places.update((queue, name) for queue in each.queues for name in each.handlers)
    work = {(task.queue, task.handler) for task in tables.tasks.values()}
    needed = {name for _, name in (mine - others) & work}
    return tuple(sorted(name for name in needed - own if name.startswith(f"{app}/")))
