"""`client.builds`: which code new runs of pinned workflows get, and which runs need which code."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import partial
from typing import Final
from uuid import UUID

from holdfast.client.naming import RunRef
from holdfast.client.session import Group
from holdfast.errors import InvalidInput, UnknownBuild
from holdfast.store.shared_calls import persist
from holdfast.types import BuildInfo, MovedRuns, MoveOutcome, RouteChange
from holdfast.values.names import check_app_name, check_build
from holdfast.values.numbers import true_or_false
from holdfast.values.texts import several

_AT_ONCE: Final = 500  # runs that are moved in one transaction


class Builds(Group):
    """The builds of apps: the code that runs of pinned workflows stay with.

    `app` is by default the client's, without one the only app that has builds.
    """

    async def list(self, *, app: str | None = None) -> builtins.list[BuildInfo]:
        """Return the builds of all apps or of one, the newest first.

        ```python
        for build in await client.builds.list():
            print(build.build, build.open_runs, build.safe_to_stop)
        ```
        """
        return await self._session.store.list_builds(None if app is None else check_app_name(app))

    async def promote(self, build: str, *, app: str | None = None, force: bool = False) -> bool:
        """Let new runs get a build. Return False if they got it already.

        It ends a ramp. Raises UnknownBuild if no worker of the build has ever signed on; with
        `force` its runs wait for one. Raises InvalidName, and InvalidInput if the app is not known.

        ```python
        await client.builds.promote("a81f", app="shop")
        ```
        """
        true_or_false(force, "force")
        named, of = check_build(build), await self._app(app)
        store = self._session.store
        change = await persist(partial(store.promote_build, of, named, force=force))
        return await self._changed(of, named, change)

    async def ramp(self, build: str, percent: float | str, *, app: str | None = None) -> bool:
        """Let a share of new runs get a build: 0 to 100, or `"10%"`. Return False if unchanged.

        Which runs get it follows from their ids; a share that grows keeps those that it had. 0 ends
        the ramp. Raises UnknownBuild, InvalidName, and InvalidInput for another share, for the
        build that is current, and if the app is not known.

        ```python
        await client.builds.ramp("a81f", "10%", app="shop")
        ```
        """
        named, share, of = check_build(build), _percent(percent), await self._app(app)
        change = await persist(partial(self._session.store.ramp_build, of, named, share))
        if change.outcome == "current":
            raise InvalidInput(
                f"build {named} is the current one of app {of}: all new runs get it that no ramp "
                "takes; ramp another build"
            )
        return await self._changed(of, named, change)

    async def roll_back(self, *, app: str | None = None) -> RouteChange:
        """End the ramp if there is one, otherwise let new runs get the build that they got before.

        `former` of the answer is the build that is left, `current` the one that new runs get now;
        None before the first build, when runs are not pinned. Raises InvalidInput if no build is
        promoted, and if the app is not known.

        ```python
        change = await client.builds.roll_back(app="shop")
        print(change.former, "->", change.current)
        ```
        """
        of = await self._app(app)
        # Not repeated if its answer is lost: a second one would lead to yet another build.
        change = await self._session.store.roll_back_build(of)
        if change.outcome == "none":
            raise InvalidInput(f"app {of} has no build that new runs get: there is nothing to undo")
        return change

    async def move(self, runs: Sequence[RunRef], build: str | None) -> MovedRuns:
        """Move runs to another build of their app; with None they are not pinned any more.

        Check first with `holdfast check` that the code of that build follows their logs. A run that
        a worker executes moves when it waits next. An ended run is moved for its retries. In the
        answer, `outcomes` says of each run, by id, if it was moved or why not. Raises RunNotFound
        for an unknown key, and InvalidName.

        ```python
        moved = await client.builds.move([run_id], "b72c")
        ```
        """
        named = None if build is None else check_build(build)
        run_ids = [await self._session.newest_of(each) for each in several("runs", runs)]
        return MovedRuns(await self._move(run_ids, named))

    async def move_all(
        self, from_build: str, build: str | None, *, app: str | None = None
    ) -> MovedRuns:
        """Move all open runs of a build to another one, or to none; see `move`.

        Raises UnknownBuild for a target that no worker had, InvalidName, and InvalidInput if the
        app is not known.

        ```python
        moved = await client.builds.move_all("a81f", "b72c", app="shop")
        ```
        """
        old, named = check_build(from_build), None if build is None else check_build(build)
        of, store = await self._app(app), self._session.store
        if named is not None:
            await self._check_known(of, named)
        outcomes: dict[UUID, MoveOutcome] = {}
        after: UUID | None = None
        while found := await store.runs_of_build(of, old, after=after, limit=_AT_ONCE):
            outcomes |= await self._move(found, named)
            after = found[-1]
        return MovedRuns(outcomes)

    async def _move(self, run_ids: Sequence[UUID], build: str | None) -> dict[UUID, MoveOutcome]:
        outcomes: dict[UUID, MoveOutcome] = {}
        for at in range(0, len(run_ids), _AT_ONCE):
            part = run_ids[at : at + _AT_ONCE]
            moved = await persist(partial(self._session.store.move_to_build, part, build))
            self._session.tell(moved.notices)
            outcomes |= moved.outcomes
        return outcomes

    async def _changed(self, app: str, build: str, change: RouteChange) -> bool:
        if change.outcome == "unknown":
            await self._check_known(app, build)
        return change.outcome == "changed"

    async def _check_known(self, app: str, build: str) -> None:
        known = [each.build for each in await self._session.store.list_builds(app)]
        if build not in known:
            raise UnknownBuild(app, build, known)

    async def _app(self, app: str | None) -> str:
        """Return the app that is meant."""
        if app is not None:
            return check_app_name(app)
        if self._session.app is not None:
            return self._session.app.name
        apps = sorted({each.app for each in await self._session.store.list_builds()})
        if len(apps) == 1:
            return apps[0]
        if apps:
            raise InvalidInput(f"several apps have builds: name the app, one of {', '.join(apps)}")
        raise InvalidInput(
            "no app has a build here: name the code in its App, App('shop', build=…), and start a "
            "worker; or name the app"
        )


def _percent(share: float | str) -> float:
    """Return a share in percent. Raises InvalidInput outside of 0 to 100."""
    try:
        value = float(share.removesuffix("%") if isinstance(share, str) else share)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value <= 100:
        raise InvalidInput(f"{share!r} is not a share of new runs: it is 0% to 100%, as in 10%")
    return value
