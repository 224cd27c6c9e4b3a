"""Builds of apps: which code new runs of pinned workflows get, and stay with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias
from uuid import UUID

from holdfast.types.base import Notice, Value

MoveOutcome: TypeAlias = Literal["moved", "same", "missing", "flow", "unknown", "unfit"]
"""What became of the move of a run to another build.

`flow`: it is a run of a flow, which has no build. `unknown`: no worker of the build has ever signed
on. `unfit`: the build does not have the workflow pinned in the run's version.
"""


class BuildInfo(Value, frozen=True, kw_only=True):
    """A build of an app, and who needs it.

    New runs get the one that is current; `ramp_percent` is the share of them that gets this one
    instead, None for none. `open_runs` stay with it, `workers` that live serve its pinned
    workflows, which `pinned` names as `app/name@version`. `needed_for` names what else has open
    work that no live worker serves but those of this build: workflows, and activities and steps
    as `app/name@0`. `first_known_at` is when its first worker signed on, or it was promoted
    without one; `signed_on_at` is when a worker of it signed on last, None if none did.
    Moments are microseconds.
    """

    app: str
    build: str
    is_current: bool
    ramp_percent: float | None
    open_runs: int
    workers: int
    needed_for: tuple[str, ...]
    pinned: tuple[str, ...]
    first_known_at: int
    signed_on_at: int | None

    @property
    def safe_to_stop(self) -> bool:
        """Return True if no open run needs its workers, and no new run will."""
        gets_none = not self.is_current and self.ramp_percent is None
        return gets_none and self.open_runs == 0 and not self.needed_for

    @property
    def lacks_workers(self) -> bool:
        """Return True if it pins workflows, and no live worker serves them."""
        return bool(self.pinned) and self.workers == 0


class RouteChange(Value, frozen=True):
    """What a change of the build that new runs get has led to.

    `unknown`: no worker of the build has ever signed on. `current`: it cannot be ramped, because it
    is the current one. `ramp`: a roll-back ended the ramp. `none`: there was nothing to roll back.

    `former` is the build that they got before. Of a roll-back, `current` is the one that they get
    now; None means that they are not pinned.
    """

    outcome: Literal["changed", "same", "unknown", "current", "ramp", "none"]
    former: str | None = None
    current: str | None = None


class MovedRuns(Value, frozen=True):
    """What became of runs that were to move to another build, by id; queues to look at."""

    outcomes: dict[UUID, MoveOutcome]
    notices: Sequence[Notice] = ()
