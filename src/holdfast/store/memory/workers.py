"""Workers: sign them on, renew their leases, find silent ones, and count tasks without a worker.

Silence proves that a worker is gone only if the database could be reached all that time. A worker
knows this only for the time in which its own heartbeats arrived: so only a worker that was heard
without a gap for as long may call another one silent. After an absence of the database, and after
its clock was set, each worker can send a heartbeat before any is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from holdfast.errors import InvalidInput
from holdfast.store.memory.alerts import is_due
from holdfast.store.memory.clock import to_micros
from holdfast.store.memory.clock_steps import watch_clock
from holdfast.store.memory.database import Part
from holdfast.store.memory.rows import NEVER, TURN
from holdfast.store.memory.stats import has_outside_ends, record_stats
from holdfast.store.memory.tables import Tables, distinct, is_heard
from holdfast.store.port import WORK_TOPIC
from holdfast.types import Duty, Heartbeat, Lease, MinuteCounts, Notice, Release, WorkerInfo
from holdfast.types.work import SILENT_SECONDS

_RIVAL = 3_000_000  # µs; a worker heard within this time may want back the runs that it suspended
_COUNT_LIMIT: Final = 1_000
_SOON: Final = 10_000_000  # µs
_LONGEST_SWEEP: Final = 86_400  # seconds


class MemoryWorkers(Part):
    """Signs workers on, and removes those that are gone."""

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
        lease, interval = to_micros(lease_seconds), to_micros(interval_seconds)
        async with self._transaction() as (tables, now):
            watch_clock(tables, now)
            is_new = info.worker_id not in tables.workers
            hear(tables, now, info, interval)
            record_stats(tables, info.worker_id, stats)
            lost: list[tuple[UUID, str]] = []
            unread: list[UUID] = []
            cancelled: list[tuple[UUID, str]] = []
            for held in leases:
                task = tables.tasks.get((held.run_id, held.key))
                if task is None or task.worker != info.worker_id or task.lease_no != held.lease_no:
                    lost.append((held.run_id, held.key))
                    continue
                task.visible_at, task.innocent = now + lease, False
                task.heartbeat = task.heartbeat if held.details is None else held.details
                if task.cancelled:
                    cancelled.append((held.run_id, held.key))
                if held.key == TURN and len(tables.logs[held.run_id]) > held.log_length:
                    unread.append(held.run_id)
            duties = () if silent_seconds is None else _duties(tables, now, silent_seconds)
            if is_new and silent_seconds is not None:
                duties = [*duties, "sign on"]
            return Heartbeat(now, lost, unread, cancelled, duties)

    async def stray_leases(
        self, worker_id: str, leases: Sequence[Lease], *, lease_seconds: float, since_seconds: float
    ) -> list[Release]:
        async with self._transaction() as (tables, now):
            named = {(lease.run_id, lease.key) for lease in leases}
            until = now + to_micros(lease_seconds - since_seconds)
            return [
                Release(task.run_id, task.key, task.lease_no)
                for task in tables.tasks.values()
                if task.worker == worker_id
                and task.visible_at < until
                and (task.run_id, task.key) not in named
            ]

    async def reap_workers(
        self,
        *,
        observer: str | None = None,
        silent_seconds: float = SILENT_SECONDS,
        worker_ids: Sequence[str] = (),
    ) -> tuple[list[str], list[Notice]]:
        silent = to_micros(silent_seconds)
        async with self._transaction() as (tables, now):
            fallen = _silent_workers(tables, now, observer, silent)
            many_hosts = len({info.hostname for info in fallen}) > 1
            innocent = {
                info.worker_id
                for info in fallen
                if info.worker_id not in worker_ids
                and (many_hosts or _outlived(tables, info, observer))
            }
            overdue = _overdue_sweeps(tables, now, silent) if observer is not None else []
            gone = sorted({info.worker_id for info in [*fallen, *overdue]}.union(worker_ids))
            notices: list[Notice] = []
            for worker_id in gone:
                tables.workers.pop(worker_id, None)
                for task in tables.tasks_of(worker_id):
                    task.visible_at = now
                    if worker_id in innocent and task.key == TURN:
                        task.attempts = max(task.attempts - 1, 0)
                    else:  # the claim that fences the worker takes the attempt off
                        task.innocent = worker_id in innocent
                    notices.append(Notice(WORK_TOPIC, task.queue))
            return gone, distinct(notices)

    async def list_workers(self) -> list[WorkerInfo]:
        async with self._transaction() as (tables, _):
            return [info for _, info in sorted(tables.workers.items())]

    async def unserved(
        self, *, silent_seconds: float | None = SILENT_SECONDS
    ) -> list[tuple[str, str, int]]:
        silent = None if silent_seconds is None else to_micros(silent_seconds)
        async with self._transaction() as (tables, now):
            served = {
                (queue, handler)
                for worker in tables.workers.values()
                if silent is None or is_heard(worker.heard_at, now, silent)
                for queue in worker.queues
                for handler in worker.handlers
            }
            claimable = (
                task
                for task in tables.tasks.values()
                if task.kind not in ("approval", "flow")
                and not (task.kind in ("step", "child") and task.visible_at >= NEVER)
            )
            tasks = Counter((task.queue, task.handler) for task in claimable)
            return [
                (queue, handler, min(count, _COUNT_LIMIT))
                for (queue, handler), count in sorted(tasks.items())
                if (queue, handler) not in served
            ]

    async def begin_sweep(self, info: WorkerInfo, *, seconds: float) -> None:
        if not 0 < seconds <= _LONGEST_SWEEP:
            raise InvalidInput(
                f"a sweep lasts between 0 and {_LONGEST_SWEEP} seconds, not {seconds:g}"
            )
        async with self._transaction() as (tables, now):
            hear(tables, now, info, 0)
            tables.sweeps_end[info.worker_id] = now + to_micros(seconds)

    async def next_due(
        self, worker_id: str, queues: Sequence[str], handlers: Sequence[str]
    ) -> tuple[int, int | None]:
        async with self._transaction() as (tables, now):
            moments = [
                task.visible_at
                for task in tables.tasks.values()
                if task.worker is None
                and task.queue in queues
                and task.handler in handlers
                and task.visible_at < NEVER
                and not tables.is_paused(task)
            ]
            moments += [
                at
                for each, at in tables.sweeps_end.items()
                if each != worker_id and each in tables.workers
            ]
            return now, min(moments, default=None)


def rivals_of(tables: Tables, now: int, worker_id: str) -> frozenset[str]:
    """Return the other workers that were heard recently."""
    return frozenset(
        other
        for other, info in tables.workers.items()
        if other != worker_id and is_heard(info.heard_at, now, _RIVAL)
    )


def spared_by(tables: Tables, now: int, worker_id: str, lease: int) -> frozenset[str]:
    """Return the workers whose expired leases a claim leaves alone.

    These are workers that are signed on, unless the claiming worker itself was heard without a gap
    for the length of a lease. One that was heard so for a quarter of a lease does not know of a
    lease that has expired: it has named the others.
    """
    if tables.hears(worker_id, now, lease):
        return frozenset()
    return frozenset(other for other in tables.workers if not tables.hears(other, now, lease // 4))


def hear(tables: Tables, now: int, info: WorkerInfo, interval: int) -> None:
    """Sign a worker on, or record that it lives. Two missed heartbeats are a gap."""
    known = tables.workers.get(info.worker_id)
    if known is None or not is_heard(known.heard_at, now, 2 * interval):
        tables.heard_since[info.worker_id] = now
    started_at = known.started_at if known else info.started_at or now
    tables.workers[info.worker_id] = msgspec.structs.replace(
        info, started_at=started_at, heard_at=now
    )


def _duties(tables: Tables, now: int, silent_seconds: float) -> list[Duty]:
    """Return the duties that may have something to do within ten seconds."""
    soon = now + _SOON
    silent, queues = to_micros(silent_seconds) // 2, tables.queues.rows.values()
    ends = [each[0] for each in tables.deadlines()]
    ends += [each[0] for each in tables.activity_deadlines()]
    found: dict[Duty, bool] = {
        "workers": not all(
            is_heard(each.heard_at, now, silent) for each in tables.workers.values()
        ),
        "deadlines": any(end <= soon for end in ends),
        "schedules": any(row.look_at <= soon or row.buffered for row in tables.schedules.values())
        or any(row.ended_at is None for row in tables.backfills.values()),
        "deliveries": any(
            row.dead_at is None and row.visible_at <= soon for row in tables.deliveries.values()
        ),
        "queues": any(
            until <= now
            for row in queues
            for until in (
                *(each.visible_at for each in row.deliveries.values()),
                *(until for _, until in row.known.values()),
                *(until for _, _, until in row.kept.values()),
            )
        ),
        "start keys": any(
            key.expires_at is not None and key.expires_at < now
            for key in tables.start_keys.values()
        ),
        "limits": bool(tables.limits),
        "ends": has_outside_ends(tables),
        "alerts": any(is_due(row.look_at, now) for row in tables.alerts.values()),
        "other releases": len({each.holdfast_version for each in tables.workers.values()}) > 1,
    }
    return [duty for duty, is_due in found.items() if is_due]


def _silent_workers(
    tables: Tables, now: int, observer: str | None, silent: int
) -> list[WorkerInfo]:
    """Return the silent workers, or none while another worker is about to fall silent."""
    if not tables.hears(observer, now, silent):
        return []
    quiet = [
        info for info in tables.workers.values() if not is_heard(info.heard_at, now, silent // 2)
    ]
    fallen = [info for info in quiet if not is_heard(info.heard_at, now, silent)]
    return fallen if len(fallen) == len(quiet) else []


def _overdue_sweeps(tables: Tables, now: int, silent: int) -> list[WorkerInfo]:
    """Return the sweeps that are silent and should have ended: they were killed."""
    return [
        info
        for info in tables.workers.values()
        if tables.sweeps_end.get(info.worker_id, now) < now
        and not is_heard(info.heard_at, now, silent)
    ]


def _outlived(tables: Tables, info: WorkerInfo, observer: str | None) -> bool:
    """Return True if the observer could not reach the database after the worker was heard last."""
    if observer is None:
        return False
    since = tables.heard_since[observer]
    return tables.workers[observer].started_at < since and info.heard_at < since
