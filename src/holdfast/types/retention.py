"""What the sweeper did, and what it would do."""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast.types.base import Value

BegunDeletions: TypeAlias = Literal["begun", "busy", "done", "archive"]


class Swept(Value, frozen=True, kw_only=True):
    """What a batch of the sweeper did: how many runs it deleted, and how many it had to keep.

    `has_more` is True if there may be more to do; the next batch begins `after` this moment
    (microseconds since 1970), None for the beginning.
    """

    deleted: int
    kept: int
    has_more: bool
    after: int | None = None


class SweepShare(Value, frozen=True, kw_only=True):
    """What the sweeper would do with the runs of a workflow whose retention is over.

    `oldest` is the moment (microseconds since 1970) since which the first of the `due` runs may be
    deleted. The others count those of them that are kept: because a child has not ended, because
    the run that they continued as is still there, because their retry is.
    """

    name: str
    due: int
    oldest: int | None
    kept_for_child: int = 0
    kept_for_successor: int = 0
    kept_for_retry: int = 0

    @property
    def kept(self) -> int:
        """How many of the runs are kept."""
        return self.kept_for_child + self.kept_for_successor + self.kept_for_retry


class SweeperState(Value, frozen=True, kw_only=True):
    """Who sweeps, the last passes, and how many runs are due.

    Moments are microseconds since 1970. `holder` sweeps now; `ended_at` is when a pass last found
    no more to do. `deleted` counts runs over all passes. `error` says why the last pass failed.
    `due` counts up to a limit; `oldest` is since when the first of them may be deleted.
    """

    holder: str | None
    begun_at: int | None
    ended_at: int | None
    deleted: int
    failed_at: int | None
    error: str | None
    archive: str | None
    due: int
    oldest: int | None
