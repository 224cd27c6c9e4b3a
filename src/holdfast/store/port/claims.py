"""The part of the port for leases of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.types import Claims, Notice, Release


class ClaimStore(Protocol):
    """Leases due tasks to workers, takes unfinished ones back, and signs workers off."""

    async def claim_tasks(
        self,
        worker_id: str,
        queues: Sequence[str],
        handlers: Sequence[str],
        limit: int,
        *,
        lease_seconds: float,
        ahead_seconds: float = 0.0,
        sticky_seconds: float = 0.25,
        max_attempts: int = 5,
    ) -> Claims:
        """Lease up to `limit` due tasks of these queues and handlers, by priority, then age.

        Tasks that come due within `ahead_seconds` count as due. A task that another worker
        suspended is left to that worker until `sticky_seconds` after it came due, if that worker
        was heard recently. The expired lease of a worker that is signed on is left alone unless
        the claiming worker was itself heard without a gap for the length of a lease. A task
        whose expired lease is taken over gets WorkerLost in its run's log. A run that lost
        `max_attempts` workers without progress fails instead of being claimed.
        """
        ...

    async def release_tasks(self, worker_id: str, releases: Sequence[Release]) -> list[Notice]:
        """Give tasks back, without an event and without counting the attempt.

        The lease's number fences each release.
        """
        ...

    async def remove_worker(self, worker_id: str) -> None:
        """Sign off a worker that has released its tasks."""
        ...
