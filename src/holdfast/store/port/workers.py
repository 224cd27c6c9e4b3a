"""The part of the port for workers: which are signed on or silent, which tasks have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.store.port.readable import readable
from holdfast.types import Heartbeat, Lease, MinuteCounts, Notice, Release, WorkerInfo
from holdfast.types.work import SILENT_SECONDS


class WorkerStore(Protocol):
    """Signs workers on, renews their leases, and removes those that are gone.

    A sweep is a worker that works for a limited time.
    """

    async def heartbeat(
        self,
        info: WorkerInfo,
        leases: Sequence[Lease],
        *,
        lease_seconds: float,
        interval_seconds: float = 2.0,
        stats: Sequence[MinuteCounts] = (),
        silent_seconds: float | None = None,
    ) -> Heartbeat:
        """Record that the worker lives, renew its leases, and return what happened to them.

        `interval_seconds` is the time between two heartbeats: a worker that misses two of them has
        a gap. `stats` are added to the statistics. With `silent_seconds`, after which a worker is
        called silent, the answer has the duties that may have something to do.
        """
        ...

    @readable
    async def stray_leases(
        self, worker_id: str, leases: Sequence[Lease], *, lease_seconds: float, since_seconds: float
    ) -> list[Release]:
        """Return how to release what the database has leased to a worker without its knowing.

        These are the leases that are not among `leases` and were given or renewed more than
        `since_seconds` ago. The answer to a claim was lost, or a failover lost the record of a
        commit.
        """
        ...

    @readable
    async def reap_workers(
        self,
        *,
        observer: str | None = None,
        silent_seconds: float = SILENT_SECONDS,
        worker_ids: Sequence[str] = (),
    ) -> tuple[list[str], list[Notice]]:
        """Remove silent workers and the named workers, and make their tasks due at once.

        `observer` is the worker that judges the silence: the database must have heard it without a
        gap for as long. Without an observer only the named workers are removed. A loss does not
        count as an attempt if the run cannot have caused it: workers on several hosts fell silent
        at once, or the database was away.
        """
        ...

    @readable
    async def list_workers(self) -> list[WorkerInfo]:
        """Return the workers that are signed on."""
        ...

    @readable
    async def unserved(
        self, *, silent_seconds: float | None = SILENT_SECONDS
    ) -> list[tuple[str, str, int]]:
        """Count the tasks that no live worker claims, as (queue, handler, tasks); at most 1,000.

        A worker that was not heard for `silent_seconds` counts as dead; with None all that are
        signed on count as live.
        """
        ...

    @readable
    async def begin_sweep(self, info: WorkerInfo, *, seconds: float) -> None:
        """Sign on a worker that will have ended after so many seconds.

        If it is silent after that, `reap_workers` removes it for any observer: where there are only
        sweeps, none lives long enough to judge silence. Raises InvalidInput for 0 seconds or less,
        and for more than a day.
        """
        ...

    @readable
    async def next_due(
        self, worker_id: str, queues: Sequence[str], handlers: Sequence[str]
    ) -> tuple[int, int | None]:
        """Return the time, and when a free task of these comes due, None for never.

        A moment that has passed means that work remains. The end of another sweep that is under way
        counts too: if it was killed, its tasks come due by then.
        """
        ...
