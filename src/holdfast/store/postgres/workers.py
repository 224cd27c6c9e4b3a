"""Workers: sign them on, renew leases, remove silent ones, count tasks without a worker."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import msgspec

from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres.database import Part, columns
from holdfast.store.postgres.rows import reader
from holdfast.store.postgres.stats import stats_arguments
from holdfast.types import Heartbeat, Lease, MinuteCounts, Notice, Release, ThreadUse, WorkerInfo
from holdfast.types.work import SILENT_SECONDS

# The first arguments of what signs a worker on.
_identity: Final = attrgetter(
    *("worker_id", "hostname", "pid", "queues", "handlers", "concurrency", "holdfast_version")
)
_read_worker = reader(WorkerInfo, "queues", "handlers", "threads", "consumes", "shard")


class PostgresWorkers(Part):
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
        row = await self._database.row(
            "heartbeat",
            *_identity(info),
            info.started_at or None,
            lease_seconds,
            *columns(leases, "run_id", "key", "lease_no", "log_length"),
            _details(leases),
            interval_seconds,
            None if info.threads is None else list(msgspec.structs.astuple(info.threads)),
            *stats_arguments(stats),
            info.consumes,
            silent_seconds,
            info.hints,
            info.listens,
        )
        return Heartbeat(
            row["now"],
            [(lease.run_id, lease.key) for lease in _at(leases, row["lost"])],
            [lease.run_id for lease in _at(leases, row["news"])],
            [(lease.run_id, lease.key) for lease in _at(leases, row["cancelled"])],
            row["duties"] or (),
        )

    async def stray_leases(
        self, worker_id: str, leases: Sequence[Lease], *, lease_seconds: float, since_seconds: float
    ) -> list[Release]:
        found = await self._database.rows(
            "stray_leases",
            worker_id,
            *columns(leases, "run_id", "key"),
            lease_seconds,
            since_seconds,
        )
        return [Release(*row) for row in found]

    async def reap_workers(
        self,
        *,
        observer: str | None = None,
        silent_seconds: float = SILENT_SECONDS,
        worker_ids: Sequence[str] = (),
    ) -> tuple[list[str], list[Notice]]:
        row = await self._database.row("reap_workers", silent_seconds, worker_ids, observer)
        return row["gone"] or [], [Notice(WORK_TOPIC, queue) for queue in row["queues"] or ()]

    async def list_workers(self) -> list[WorkerInfo]:
        return [
            _read_worker(
                row,
                queues=tuple(row["queues"]),
                handlers=tuple(row["handlers"]),
                threads=None if row["threads"] is None else ThreadUse(*row["threads"]),
                consumes=None if row["consumes"] is None else tuple(row["consumes"]),
                shard=None,
            )
            for row in await self._database.rows("list_workers")
        ]

    async def unserved(
        self, *, silent_seconds: float | None = SILENT_SECONDS
    ) -> list[tuple[str, str, int]]:
        found = await self._database.rows("unserved", silent_seconds)
        return [(row["queue"], row["handler"], row["tasks"]) for row in found]

    async def begin_sweep(self, info: WorkerInfo, *, seconds: float) -> None:
        await self._database.row("begin_sweep", *_identity(info), seconds, info.consumes)

    async def next_due(
        self, worker_id: str, queues: Sequence[str], handlers: Sequence[str]
    ) -> tuple[int, int | None]:
        row = await self._database.row("next_due", worker_id, queues, handlers)
        return row["now"], row["next_due_at"]


def _details(leases: Sequence[Lease]) -> list[str | None] | None:
    """Return the heartbeat details of activities; None if none has new ones."""
    details = [lease.details for lease in leases]
    return None if all(each is None for each in details) else details


def _at(leases: Sequence[Lease], places: list[int] | None) -> list[Lease]:
    """Return the leases at positions, which count from 1."""
    return [leases[place - 1] for place in places or ()]
