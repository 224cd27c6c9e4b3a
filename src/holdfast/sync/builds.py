"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from holdfast.client.builds import Builds
from holdfast.client.naming import RunRef
from holdfast.sync.base import SyncGroup
from holdfast.types import BuildInfo, MovedRuns, RouteChange


class SyncBuilds(SyncGroup[Builds], of=Builds):
    """The builds of apps: the code that runs of pinned workflows stay with."""

    def list(self, *, app: str | None = None) -> builtins.list[BuildInfo]:
        """Return the builds of all apps or of one, the newest first."""
        return self._call(self._target.list, app=app)

    def promote(self, build: str, *, app: str | None = None, force: bool = False) -> bool:
        """Let new runs get a build. Return False if they got it already."""
        return self._call(self._target.promote, build, app=app, force=force)

    def ramp(self, build: str, percent: float | str, *, app: str | None = None) -> bool:
        """Let a share of new runs get a build: 0 to 100, or `"10%"`. Return False if unchanged."""
        return self._call(self._target.ramp, build, percent, app=app)

    def roll_back(self, *, app: str | None = None) -> RouteChange:
        """End the ramp if there is one, otherwise let new runs get the build that they got
        before.
        """
        return self._call(self._target.roll_back, app=app)

    def move(self, runs: Sequence[RunRef], build: str | None) -> MovedRuns:
        """Move runs to another build of their app; with None they are not pinned any more."""
        return self._call(self._target.move, runs, build)

    def move_all(self, from_build: str, build: str | None, *, app: str | None = None) -> MovedRuns:
        """Move all open runs of a build to another one, or to none; see `move`."""
        return self._call(self._target.move_all, from_build, build, app=app)
