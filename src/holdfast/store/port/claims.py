"""The part of the port for leases of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from holdfast.store.port.readable import readable
from holdfast.types import Claims, Notice, Release

SUSPECT_ATTEMPTS: Final = 3
"""Claims without progress after which a worker has only one such task at a time."""


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
        seeks_leases: bool = False,
    ) -> Claims:
        """Lease up to `limit` due tasks of these queues and handlers, by priority, then age.

        Tasks that come due within `ahead_seconds` count as due. If another worker suspended a task
        and has sent a heartbeat recently, the task is left to it until `sticky_seconds` after it
        came due. The expired lease of a worker that is signed on is left alone, unless the database
        has heard the claiming worker itself without a gap for the length of a lease. If an expired
        lease is taken over, the run's log gets WorkerLost. A run that lost `max_attempts` workers
        without progress is not claimed: it fails.

        A task that has lost `SUSPECT_ATTEMPTS` workers is a suspect. A worker is leased one only if
        it holds no other, or if that one has made progress since. A claim may leave out the search
        for expired leases, which costs more; with `seeks_leases` it does not.
        """
        ...

    async def release_tasks(self, worker_id: str, releases: Sequence[Release]) -> list[Notice]:
        """Give tasks back, without an event and without counting the attempt.

        A release counts only with the current number of the lease.
        """
        ...

    @readable
    async def remove_worker(self, worker_id: str, *, with_messages: bool = False) -> None:
        """Sign off a worker that has released its tasks.

        `with_messages`: what it has in flight of message queues is given back uncounted.
        """
        ...
