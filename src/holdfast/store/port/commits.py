"""The part of the port for what workers write to the logs of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.store.port.readable import readable
from holdfast.types import ActivitiesEnded, ActivityEnd, Committed, Notice, OpenActivity, TurnCommit


class CommitStore(Protocol):
    """Commits the turns of many runs in one call, and ends attempts of activities."""

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        """Append the turns' events, then suspend or finish the runs. All or nothing per run.

        The caller draws one `token` for a call and all its repetitions: a repeated call
        recognises what the first one wrote, and answers as the first one would have.

        Raises ValueError if a run occurs twice in one call.
        """
        ...

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
