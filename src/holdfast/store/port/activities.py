"""The part of the port for activities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import ActivitiesEnded, ActivityEnd, Notice, OpenActivity


class ActivityStore(Protocol):
    """Ends attempts of activities, and lists the activities that have not ended."""

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        """Record how attempts of activities ended, in their runs' logs, and wake the runs.

        An end counts only with the current number of the lease. `worker_id` None means a caller
        from outside, with the token of an attempt that still runs, or that gave its lease back to
        be completed later. A failure is retried as the policy in the task's payload says: then the
        log gets ActivityRetryScheduled, and the task is due again after the pause. Otherwise the
        log gets ActivityFailed. Repeating a call is harmless: what was recorded before is reported
        as `lost`.
        """
        ...

    @readable
    async def time_out_activities(
        self, *, limit: int = 100
    ) -> tuple[int, int | None, list[Notice]]:
        """Fail activities that are past their schedule-to-close time, leased or not.

        Returns how many were ended, when the next one is due, and the notices.
        """
        ...

    async def list_activities(self, run_id: UUID, *, limit: int = 100) -> list[OpenActivity]:
        """Return a run's activities that have not ended, by key."""
        ...
