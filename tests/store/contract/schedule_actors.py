"""Who acts in the tests of schedules: users that define them, schedulers moved by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from holdfast.store.port import Store
from holdfast.types import (
    Bucket,
    DueSchedule,
    Fired,
    Firing,
    NewSchedule,
    RunTarget,
    ScheduleRecord,
    TickPolicy,
    When,
)

from .actors import SECOND, ManualWorker

MINUTE = 60 * SECOND
NAME = "shop/nightly"
TARGET = RunTarget(name="shop/order", input='{"n": 1}')
ORDER = ("shop/order@1",)


def new_schedule(
    name: str = NAME, *, target: RunTarget = TARGET, when: When | None = None, **policy: Any
) -> NewSchedule:
    """Return a schedule that comes due every minute; `policy` are fields of its policy."""
    return NewSchedule(
        name=name,
        when=When(every_seconds=60) if when is None else when,
        target=target,
        policy=TickPolicy(**policy),
    )


@dataclass
class ManualScheduler:
    """A scheduler that computes and fires when the test says so."""

    store: Store

    async def create(self, name: str = NAME, **options: Any) -> int:
        """Create a schedule and compute its first tick, a minute from now; return that."""
        created, _ = await self.store.create_schedule(new_schedule(name, **options))
        assert created
        due = await self.take(name)
        first = await self.store.now() + MINUTE
        fired = await self.move(due, position=due.position, next_tick_at=first)
        assert fired.moved == {name}
        return first

    async def take(self, name: str = NAME, **options: Any) -> DueSchedule:
        """Lease the one schedule that is to be computed."""
        [due] = await self.store.due_schedules(**options)
        assert due.name == name
        return due

    async def move(
        self,
        due: DueSchedule,
        *ticks: int,
        position: int | None = None,
        next_tick_at: int | None = None,
        **fields: Any,
    ) -> Fired:
        """Fire ticks of a schedule that was leased, by default up to the last of them."""
        at = (max(ticks) if ticks else due.position) if position is None else position
        firing = Firing(
            name=due.name,
            revision=due.revision,
            expected=due.expected,
            position=at,
            next_tick_at=next_tick_at,
            ticks=ticks,
            **fields,
        )
        return await self.store.fire_schedules([firing])

    async def fire(self, *ticks: int, name: str = NAME, next_in: int | None = MINUTE) -> Bucket:
        """Fire ticks of the schedule that is due now; return the bucket of the last one."""
        due = await self.take(name)
        following = None if next_in is None else max(ticks) + next_in
        fired = await self.move(due, *ticks, next_tick_at=following)
        assert fired.moved == {name}
        return await self.bucket(max(ticks), name)

    async def bucket(self, at: int, name: str = NAME) -> Bucket:
        """Return the bucket of a tick."""
        [bucket] = await self.store.list_buckets(name, before=at + 1, limit=1)
        assert bucket.tick_at == at
        return bucket

    async def record(self, name: str = NAME) -> ScheduleRecord:
        """Return a schedule that must exist."""
        found = await self.store.get_schedule(name)
        assert found is not None
        return found


def run_of(bucket: Bucket) -> UUID:
    """Return the run that a tick has started."""
    assert bucket.run_id is not None
    return bucket.run_id


async def end_run(ann: ManualWorker, **options: Any) -> None:
    """End the one run that is due."""
    await ann.finish(await ann.take(handlers=ORDER, **options))


def summary(buckets: Sequence[Bucket]) -> list[tuple[str, str | None]]:
    """Return outcome and cause of each, oldest first."""
    return [(bucket.outcome, bucket.cause) for bucket in reversed(buckets)]
