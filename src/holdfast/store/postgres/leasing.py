"""Claim, release and renew leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres import rows
from holdfast.store.postgres.connections import Database
from holdfast.store.postgres.watermark import Look, Watermark
from holdfast.types import Claims, Heartbeat, Lease, Notice, Release, WorkerInfo

if TYPE_CHECKING:
    import asyncpg

_LANE_PAGES: Final = 80  # of a handler in a queue: a look costs so much where nothing is
_HORIZON_SECONDS: Final = 10.0  # how far a claim looks ahead while dead entries abound


@dataclass(frozen=True, slots=True)
class Claim:
    """What a worker asks for; durations are seconds."""

    worker_id: str
    queues: Sequence[str]
    handlers: Sequence[str]
    limit: int
    lease: float
    ahead: float
    sticky: float
    max_attempts: int


async def claim_tasks(database: Database, claim: Claim, watermark: Watermark) -> Claims:
    """Lease due tasks."""
    first, *others = watermark.looks()
    found, whole = await _look(database, claim, watermark, first, claim.limit)
    notices = await _fail_poisoned(database, claim, whole)
    now, next_due_at, wanting = whole["now"], whole["next_due_at"], len(found) < claim.limit
    watermark.advance(now, whole["watermark"], wanting=wanting)
    for look in others if wanting else ():
        left, part = await _look(database, claim, watermark, look, claim.limit - len(found))
        found += left
        notices += await _fail_poisoned(database, claim, part)
    again = watermark.again_after(first)
    if wanting and again is not None:  # for what it passed over
        next_due_at = now + again if next_due_at is None else min(next_due_at, now + again)
    return Claims(now, [rows.claimed_task(row) for row in found], next_due_at, notices)


async def _look(
    database: Database, claim: Claim, watermark: Watermark, look: Look, limit: int
) -> tuple[list[asyncpg.Record], asyncpg.Record]:
    """Claim what is due in a range; return the tasks, and what is said of all."""
    *found, whole = await database.rows(
        "claim_tasks",
        claim.worker_id,
        claim.queues,
        claim.handlers,
        limit,
        claim.lease,
        claim.ahead,
        claim.sticky,
        claim.max_attempts,
        look.since,
        look.until,
        look.leased_since,
        _HORIZON_SECONDS if watermark.is_cut else None,
        True,  # details come back as text
        True,  # with the properties of runs
    )
    if whole["pages"] is not None:
        usual = _LANE_PAGES * len(claim.queues) * len(claim.handlers)
        watermark.paid(look, whole["now"], max(0, whole["pages"] - usual))
    return found, whole


async def _fail_poisoned(database: Database, claim: Claim, whole: asyncpg.Record) -> list[Notice]:
    """Fail what a claim left unleased because it has lost too many workers."""
    if whole["poisoned"] is None:
        return []
    row = await database.row("fail_poisoned", whole["poisoned"], claim.max_attempts)
    return rows.notices(row[0])


async def release_tasks(
    database: Database, worker_id: str, releases: Sequence[Release]
) -> list[Notice]:
    """Give tasks back unfinished."""
    queues = await database.rows(
        "release_tasks",
        worker_id,
        [release.run_id for release in releases],
        [release.key for release in releases],
        [release.lease_no for release in releases],
        [release.visible_at for release in releases],
        [release.stuck for release in releases],
    )
    return [Notice(WORK_TOPIC, row[0]) for row in queues]


async def heartbeat(
    database: Database,
    info: WorkerInfo,
    leases: Sequence[Lease],
    lease_seconds: float,
    interval_seconds: float,
) -> Heartbeat:
    """Sign a worker on or say that it lives, and renew its leases."""
    row = await database.row(
        "heartbeat",
        info.worker_id,
        info.hostname,
        info.pid,
        info.queues,
        info.handlers,
        info.concurrency,
        info.holdfast_version,
        info.started_at or None,
        lease_seconds,
        [lease.run_id for lease in leases],
        [lease.key for lease in leases],
        [lease.lease_no for lease in leases],
        [lease.known for lease in leases],
        _details(leases),
        interval_seconds,
        None if info.threads is None else list(msgspec.structs.astuple(info.threads)),
    )
    lost = _at(leases, row["lost"])
    news = _at(leases, row["news"])
    return Heartbeat(
        row["now"],
        [(lease.run_id, lease.key) for lease in lost],
        [lease.run_id for lease in news],
        [(lease.run_id, lease.key) for lease in _at(leases, row["cancelled"])],
    )


def _details(leases: Sequence[Lease]) -> list[str | None] | None:
    """Return what activities said last; None where none has anything new to say."""
    details = [lease.details for lease in leases]
    return None if all(each is None for each in details) else details


def _at(leases: Sequence[Lease], places: list[int] | None) -> list[Lease]:
    """Return the leases at places, which count from 1."""
    return [leases[place - 1] for place in places or ()]


async def reap_workers(
    database: Database, observer: str | None, silent_seconds: float, worker_ids: Sequence[str]
) -> tuple[list[str], list[Notice]]:
    """Forget workers, and make their tasks due at once."""
    row = await database.row("reap_workers", silent_seconds, worker_ids, observer)
    return row["gone"] or [], [Notice(WORK_TOPIC, queue) for queue in row["queues"] or ()]
