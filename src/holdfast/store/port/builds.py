"""The part of the port for builds: which code new runs of pinned workflows get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import BuildInfo, MovedRuns, RouteChange


class BuildStore(Protocol):
    """Keeps the builds of apps, and moves runs between them."""

    @readable
    async def declare_build(self, app: str, build: str, pinned: Sequence[str]) -> None:
        """Record that a worker of a build signs on, with the handlers of its pinned workflows.

        The first build of an app becomes the current one.
        """
        ...

    @readable
    async def kept_declarations(self, app: str, build: str | None) -> Sequence[str] | None:
        """Return the names that code of this build must not declare; None if the app has no build.

        All names that were declared, while live workers have the current build and it is another.
        """
        ...

    @readable
    async def list_builds(self, app: str | None = None) -> list[BuildInfo]:
        """Return the builds of an app or of all, by app, the newest first."""
        ...

    @readable
    async def promote_build(self, app: str, build: str, *, force: bool = False) -> RouteChange:
        """Make a build the one that new runs get, and end a ramp: 'changed', 'same', 'unknown'.

        With `force` also one that is unknown, as if it pinned what the current one does.
        """
        ...

    @readable
    async def ramp_build(self, app: str, build: str, percent: float) -> RouteChange:
        """Let a share of new runs get a build: 'changed', 'same', 'unknown', or 'current'.

        Raises InvalidInput for a share outside of 0 to 100 percent.
        """
        ...

    @readable
    async def roll_back_build(self, app: str) -> RouteChange:
        """End the ramp ('ramp'), else return to the build before ('changed'); 'none' without."""
        ...

    @readable
    async def move_to_build(self, run_ids: Sequence[UUID], build: str | None) -> MovedRuns:
        """Move runs to another build of their app; with None they are not pinned any more."""
        ...

    @readable
    async def runs_of_build(
        self, app: str, build: str, *, after: UUID | None = None, limit: int = 1_000
    ) -> list[UUID]:
        """Return the open runs that stay with a build, by id, after one of them."""
        ...
