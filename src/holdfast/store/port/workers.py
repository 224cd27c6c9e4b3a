"""The part of the port for workers: who is signed on, who is silent, what nobody serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.types import Heartbeat, Lease, Notice, WorkerInfo


class WorkerStore(Protocol):
    """Signs workers on, renews their leases, and removes those that are gone."""

    async def heartbeat(
        self,
        info: WorkerInfo,
        leases: Sequence[Lease],
        *,
        lease_seconds: float,
        interval_seconds: float = 2.0,
    ) -> Heartbeat:
        """Record that the worker lives, renew its leases, and return what it has to know of them.

        `interval_seconds` is the time between two heartbeats: a worker that misses two
        of them was away.
        """
        ...

    async def reap_workers(
        self,
        *,
        observer: str | None = None,
        silent_seconds: float = 8.0,
        worker_ids: Sequence[str] = (),
    ) -> tuple[list[str], list[Notice]]:
        """Remove workers that are silent, or that are named, and make their tasks due at once.

        `observer` is the worker that judges the silence: it must itself have been heard for as
        long, without a gap. Without an observer only the named workers are removed. A loss that
        the run cannot have caused does not count as an attempt: workers on several hosts fell
        silent at once, or the database was away.
        """
        ...

    async def list_workers(self) -> list[WorkerInfo]:
        """Return the workers that are signed on."""
        ...

    async def unserved(self) -> list[tuple[str, str, int]]:
        """Count the tasks that no live worker claims, as (queue, handler, tasks); at most 1,000."""
        ...
