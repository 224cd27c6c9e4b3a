"""Claim, release and renew leases."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres import rows
from holdfast.store.postgres.connections import Database
from holdfast.types import Claims, Heartbeat, Lease, Notice, Release, WorkerInfo

if TYPE_CHECKING:
    import asyncpg

_OVERLAP: Final = 1_000_000  # µs; longer than a task's row takes from its clock to its commit
_FULL_EVERY: Final = 50  # claims
_FULL_SECONDS: Final = 0.05
_ASK_AGAIN: Final = 100_000  # µs


@dataclass(slots=True)
class Watermark:
    """How far a worker's claims have come, so that they can pass over what is long taken.

    Until vacuum has come by, the index keeps an entry for every task that ever was due. Claims
    look behind the watermark; now and then, and soon after one that did not find all it asked
    for, at everything, for what was committed late and for leases that ran out.
    """

    reached: int | None = None  # µs
    claims: int = 0
    full_at: float = -math.inf
    wanting: bool = False

    def since(self) -> int | None:
        """Return the moment from which the next claim looks, None for the beginning."""
        self.claims += 1
        late = self.wanting and time.monotonic() - self.full_at > _FULL_SECONDS
        if self.reached is None or late or self.claims >= _FULL_EVERY:
            self.claims, self.full_at = 0, time.monotonic()
            return None
        return self.reached - _OVERLAP

    def advance(self, reached: int | None, *, wanting: bool) -> None:
        """Note how far a claim came, and whether it found less than it asked for."""
        self.wanting = wanting
        if reached is not None:
            self.reached = max(self.reached or 0, reached)


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
    since = watermark.since()
    *found, whole = await database.rows(
        "claim_tasks",
        claim.worker_id,
        claim.queues,
        claim.handlers,
        claim.limit,
        claim.lease,
        claim.ahead,
        claim.sticky,
        claim.max_attempts,
        since,
    )
    now, next_due_at, wanting = whole["now"], whole["next_due_at"], len(found) < claim.limit
    watermark.advance(whole["watermark"], wanting=wanting)
    if wanting and since is not None:
        again_at = now + _ASK_AGAIN  # for what it passed over
        next_due_at = again_at if next_due_at is None else min(next_due_at, again_at)
    tasks = [rows.claimed_task(row) for row in found]
    return Claims(now, tasks, next_due_at, await _fail_poisoned(database, claim, whole))


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
