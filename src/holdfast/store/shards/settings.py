"""What all shards are told alike: pauses, limits, builds, flows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from holdfast.errors import DatabaseUnavailable, FlowInUse
from holdfast.store.shards.members import gather
from holdfast.store.shards.router import Routed, merged, notices_of
from holdfast.types import (
    BuildInfo,
    DeclaredRules,
    DeletedFlow,
    EnsuredFlow,
    FlowInfo,
    FlowShape,
    LimitKind,
    LimitRule,
    LimitScope,
    MovedRuns,
    Notice,
    RouteChange,
    Scope,
)
from holdfast.values.names import split_name

# Of several outcomes, the one that counts: the first of these.
_ENSURED: Final = ("mismatch", "replaced", "compiled", "verified")
_ROUTED: Final = ("changed", "ramp", "current", "same", "none", "unknown")


class Settings(Routed):
    """Changes of settings in all shards. One that was cut off is completed by the same call."""

    async def set_pause(
        self, scope: Scope, name: str, *, paused: bool, reason: str | None = None
    ) -> tuple[bool, list[Notice]]:
        """Pause or resume; return True if that changed a shard; see `ControlStore.set_pause`."""
        found: list[tuple[bool, list[Notice]]] = await self._each(
            "set_pause", scope, name, paused=paused, reason=reason
        )
        notices = notices_of(range(len(found)), [told for _, told in found])
        return any(changed for changed, _ in found), notices

    async def set_limit(self, rule: LimitRule) -> bool:
        """Return True if that changed a shard; see `LimitStore.set_limit`."""
        return any(await self._each("set_limit", rule))

    async def remove_limit(
        self, scope: LimitScope, name: str, kind: LimitKind, key: str = ""
    ) -> bool:
        """Return True if a shard had it; see `LimitStore.remove_limit`."""
        return any(await self._each("remove_limit", scope, name, kind, key))

    async def declare_start_rules(self, rules: Sequence[DeclaredRules]) -> None:
        """Record rules in the shards that answer: the workers of the others record them there.

        See `StartRuleStore.declare_start_rules`.
        """
        await self._router.present("declare_start_rules", rules)

    async def promote_build(self, app: str, build: str, *, force: bool = False) -> RouteChange:
        """Let new runs get a build; see `BuildStore.promote_build`."""
        await self._make_known(app, build)
        return _change_of(await self._each("promote_build", app, build, force=force))

    async def ramp_build(self, app: str, build: str, percent: float) -> RouteChange:
        """Let a share of new runs get a build; see `BuildStore.ramp_build`."""
        await self._make_known(app, build)
        return _change_of(await self._each("ramp_build", app, build, percent))

    async def roll_back_build(self, app: str) -> RouteChange:
        """Return to the build that shard 0 had before; see `BuildStore.roll_back_build`.

        A shard that was added since then had others before, or none.
        """
        found: list[list[BuildInfo]] = await self._each("list_builds", app)  # none is away
        first, *others = map(_current_of, found)
        if any(each != first for each in others):  # a call before was cut off
            former = next(each for each in others if each != first)
            for number, current in enumerate(others, 1):
                if current != first:
                    await self._return_to(number, app, first)
            return RouteChange("changed", former, first)
        change: RouteChange = await self._router.members.call(0, "roll_back_build", app)
        for number in range(1, len(found)):
            if change.outcome == "changed":
                await self._return_to(number, app, change.current)
            elif change.outcome == "ramp" and any(
                x.ramp_percent is not None for x in found[number]
            ):
                await self._router.members.call(number, "roll_back_build", app)
        return change

    async def _return_to(self, number: int, app: str, build: str | None) -> None:
        """Roll a shard back to a build, None for not any; promote that if its past is another."""
        call, change = self._router.members.call, RouteChange("ramp")
        while change.outcome == "ramp" or (change.outcome == "changed" and build is None):
            change = await call(number, "roll_back_build", app)
            if change.outcome == "changed" and change.current == build:
                return
        if build is not None:
            await self._make_known(app, build)
            await call(number, "promote_build", app, build)

    async def move_to_build(self, run_ids: Sequence[UUID], build: str | None) -> MovedRuns:
        """Move runs to a build that any shard knows; see `BuildStore.move_to_build`."""
        if build is not None:
            await self._make_known(None, build)
        asked = await self._router.apart(run_ids)
        found: list[MovedRuns] = await gather(
            self._router.members.call(number, "move_to_build", which, build)
            for number, which in asked.items()
        )
        notices = notices_of(asked, [each.notices for each in found])
        return MovedRuns(merged([each.outcomes for each in found]), notices)

    async def _make_known(self, app: str | None, build: str) -> None:
        """Let all shards know a build that one knows: its workers sign on one after the other.

        Of an app, or of each that has a build of this name.
        """
        found: list[list[BuildInfo]] = await self._each("list_builds", app)
        of_shards = [{each.app: each for each in some if each.build == build} for some in found]
        for each in merged(of_shards).values():
            for number, known in enumerate(of_shards):
                if each.app not in known:
                    await self._router.members.call(
                        number, "declare_build", each.app, build, each.pinned
                    )

    async def ensure_flow(
        self, shape: FlowShape, shape_hash: str, *, replace: bool = False
    ) -> EnsuredFlow:
        """Return the outcome that says most; see `FlowStore.ensure_flow`."""
        found: list[EnsuredFlow] = await self._each(
            "ensure_flow", shape, shape_hash, replace=replace
        )
        counts = min(found, key=lambda each: _ENSURED.index(each.status))
        notices = notices_of(range(len(found)), [each.notices for each in found])
        ended = sum(each.ended for each in found)
        return EnsuredFlow(counts.status, counts.found, ended, notices)

    async def delete_flow(
        self, name: str, *, terminate: bool = False, force: bool = False, before: int | None = None
    ) -> DeletedFlow:
        """Delete a flow with all its runs, shard by shard; see `FlowStore.delete_flow`.

        Those that may refuse it are first: shards with open runs, and shard 0, which has schedules.
        """
        flows: list[list[FlowInfo]] = await self._each("list_flows")
        deleted = DeletedFlow(runs=None, name=name)
        for number in sorted(range(len(flows)), key=lambda at: (not _is_used(flows[at], name), at)):
            begun, is_done = None, False  # each shard has a beginning of its own
            while not is_done:
                try:
                    told: DeletedFlow = await self._router.members.call(
                        number,
                        "delete_flow",
                        deleted.name,
                        terminate=terminate,
                        force=force,
                        before=begun,
                    )
                except FlowInUse as error:
                    raise FlowInUse(f"{error}, in shard {number}") from error
                begun, is_done = told.before, told.is_done
                told = replace(told, notices=notices_of([number], [told.notices]))
                deleted = _both(deleted, told)
        return deleted

    async def _each(self, name: str, *args: Any, **options: Any) -> list[Any]:
        try:
            return await self._router.members.each(name, *args, **options)
        except DatabaseUnavailable as error:
            raise DatabaseUnavailable(
                f"{error}. The other shards may have changed: do the same again when all answer"
            ) from error


def _change_of(found: list[RouteChange]) -> RouteChange:
    return min(found, key=lambda each: _ROUTED.index(each.outcome))


def _current_of(builds: list[BuildInfo]) -> str | None:
    return next((each.build for each in builds if each.is_current), None)


def _is_used(flows: list[FlowInfo], name: str) -> bool:
    return any(each.open_runs for each in flows if name in (each.name, split_name(each.name)[1]))


def _both(first: DeletedFlow, second: DeletedFlow) -> DeletedFlow:
    """Return what two calls have deleted; whether that is all, the second one says."""
    runs = [each.runs for each in (first, second) if each.runs is not None]
    return replace(
        second, runs=sum(runs) if runs else None, notices=[*chain(first.notices, second.notices)]
    )
