"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from holdfast.client.builds import Builds
from holdfast.client.naming import RunRef
from holdfast.sync.base import SyncGroup
from holdfast.types import BuildInfo, MovedRuns, RouteChange


class SyncBuilds(SyncGroup[Builds]):
    """The builds of apps: the code that runs of pinned workflows stay with.

    `app` is by default the client's, without one the only app that has builds.
    """

    def list(self, *, app: str | None = None) -> builtins.list[BuildInfo]:
        """Return the builds of all apps or of one, the newest first.

        ```python
        for build in client.builds.list():
            print(build.build, build.open_runs, build.safe_to_stop)
        ```
        """
        return self._call(self._target.list, app=app)

    def promote(self, build: str, *, app: str | None = None, force: bool = False) -> bool:
        """Let new runs get a build. Return False if they got it already.

        It ends a ramp. Raises UnknownBuild if no worker of the build has ever signed on; with
        `force` its runs wait for one. Raises InvalidName, and InvalidInput if the app is not known.

        ```python
        client.builds.promote("a81f", app="shop")
        ```
        """
        return self._call(self._target.promote, build, app=app, force=force)

    def ramp(self, build: str, percent: float | str, *, app: str | None = None) -> bool:
        """Let a share of new runs get a build: 0 to 100, or `"10%"`. Return False if unchanged.

        Which runs get it follows from their ids; a share that grows keeps those that it had. 0 ends
        the ramp. Raises UnknownBuild, InvalidName, and InvalidInput for another share, for the
        build that is current, and if the app is not known.

        ```python
        client.builds.ramp("a81f", "10%", app="shop")
        ```
        """
        return self._call(self._target.ramp, build, percent, app=app)

    def roll_back(self, *, app: str | None = None) -> RouteChange:
        """End the ramp if there is one, otherwise let new runs get the build that they got before.

        `former` of the answer is the build that is left, `current` the one that new runs get now;
        None before the first build, when runs are not pinned. Raises InvalidInput if no build is
        promoted, and if the app is not known.

        ```python
        change = client.builds.roll_back(app="shop")
        print(change.former, "->", change.current)
        ```
        """
        return self._call(self._target.roll_back, app=app)

    def move(self, runs: Sequence[RunRef], build: str | None) -> MovedRuns:
        """Move runs to another build of their app; with None they are not pinned any more.

        Check first with `holdfast check` that the code of that build follows their logs. A run that
        a worker executes moves when it waits next. An ended run is moved for its retries. In the
        answer, `outcomes` says of each run, by id, if it was moved or why not. Raises RunNotFound
        for an unknown key, and InvalidName.

        ```python
        moved = client.builds.move([run_id], "b72c")
        ```
        """
        return self._call(self._target.move, runs, build)

    def move_all(self, from_build: str, build: str | None, *, app: str | None = None) -> MovedRuns:
        """Move all open runs of a build to another one, or to none; see `move`.

        Raises UnknownBuild for a target that no worker had, InvalidName, and InvalidInput if the
        app is not known.

        ```python
        moved = client.builds.move_all("a81f", "b72c", app="shop")
        ```
        """
        return self._call(self._target.move_all, from_build, build, app=app)
