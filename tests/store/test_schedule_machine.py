"""Random schedules, and the runs that they start, on both stores, which must agree."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, get_args
from uuid import UUID

import pytest
from machine_runs import NAMES, PICK, WorkAgrees
from msgspec.structs import replace
from seeded import act, run_seeds

from holdfast.store.port import Store
from holdfast.types import (
    BackfillFiring,
    Firing,
    NewSchedule,
    Overlap,
    RunTarget,
    SkippedTicks,
    TickPolicy,
    When,
)

MINUTE = 60_000_000
SCHEDULES = ("shop/a", "shop/a", "shop/b", "shop/c")
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)


class SchedulesAgree(WorkAgrees):
    """Defines schedules, fires them, and ends what they start."""

    backfills = 0

    def begin(self, chance: Random) -> None:
        """Begin with a schedule, so that there is something to fire."""
        self.define("shop/a", chance.choice(OVERLAPS), "1")

    @act(name=SCHEDULES, overlap=OVERLAPS, value=("null", "1"))
    def define(self, name: str, overlap: Overlap, value: str) -> None:
        """Create or change a schedule: `shop/c` in the code of an app, the others by hand."""
        new = NewSchedule(
            name=name,
            when=When(every_seconds=60),
            target=RunTarget(name=NAMES[0], input=value),
            policy=TickPolicy(overlap=overlap, bucket_retention_seconds=300.0),
        )
        if name == "shop/c":
            self.first_of(lambda store: store.ensure_schedules("shop", new.digest, [new]))
        elif not self.first_of(lambda store: store.create_schedule(new)):
            self.first_of(lambda store: store.update_schedule(new))

    def first_of(self, change: Callable[[Store], Awaitable[tuple[Any, Any]]]) -> Any:
        """Compare answers without notices: PostgreSQL sends those of schedulers itself."""

        async def without_notices(store: Store) -> Any:
            return (await change(store))[0]

        answer = self.do(without_notices)
        self.compare()
        return answer

    @act(name=SCHEDULES, what=("pause", "resume", "delete", "cancel"))
    def control(self, name: str, what: str) -> None:
        """Pause, resume or delete a schedule, which may not exist, or end its backfills."""
        if what == "pause":
            self.do(lambda store: store.pause_schedule(name, note="no"))
        elif what == "resume":
            self.first_of(lambda store: store.resume_schedule(name))
        elif what == "delete":
            self.do(lambda store: store.delete_schedule(name))
        else:
            self.do(lambda store: store.cancel_backfills(name))
        self.compare()

    @act(name=SCHEDULES, overlap=(None, *OVERLAPS), ago=(None, 0, 1))
    def trigger(self, name: str, overlap: Overlap | None, ago: int | None) -> None:
        """Fire a tick by hand, now or for a moment that may have been fired before."""
        at = None if ago is None else self.began_at + ago * MINUTE
        self.first_of(lambda store: store.trigger_schedule(name, at=at, overlap=overlap))

    @act(weight=4, ticks=(0, 1, 2, 3), skip=(True, False))
    def fire(self, ticks: int, skip: bool) -> None:
        """Do what a scheduler does a minute later: compute what is due, and fire it."""
        self.move(61)

        async def due(store: Store) -> Any:
            return await store.due_schedules()

        found = {id(store): self.wait(due(store)) for store in (self.model, self.other)}
        plain = [[(d.name, d.position, d.expected) for d in each] for each in found.values()]
        assert plain[0] == plain[1]
        now = self.model.time()
        missed = [SkippedTicks(now - 9, now - 5, 2, "too_late")] if skip else []

        async def fire(store: Store) -> Any:
            firings = [
                Firing(
                    name=each.name,
                    revision=each.revision,
                    expected=each.expected,
                    position=now,
                    next_tick_at=now + MINUTE,
                    ticks=[now - n for n in range(ticks, 0, -1)],
                    skipped=missed,
                )
                for each in found[id(store)]
            ]
            return (await store.fire_schedules(firings)).moved

        self.both(fire)
        self.compare()

    @act(name=SCHEDULES, overlap=(None, *OVERLAPS), minutes=(1, 2))
    def backfill(self, name: str, overlap: Overlap | None, minutes: int) -> None:
        """Ask for ticks of the past, and fire the first of what was asked for."""
        self.backfills += 1
        new = UUID(int=self.backfills)
        first, last = self.began_at - minutes * MINUTE, self.began_at - 1
        self.first_of(
            lambda store: store.backfill_schedule(
                name, first, last, backfill_id=new, overlap=overlap
            )
        )
        for each in self.do(lambda store: store.due_backfills()):
            at = each.position + MINUTE // 2
            firing = BackfillFiring(
                backfill_id=each.backfill_id, position=each.position, new_position=at, ticks=[at]
            )
            self.first_of(lambda store, firing=firing: store.fire_backfill(firing))

    @act(weight=2, number=PICK, which=(True, False))
    def start_buffered(self, number: int, which: bool) -> None:
        """Start what waited for the end of runs, of one or of any."""
        run_ids = self.chosen([number]) if which and self.ids else None
        self.first_of(lambda store: store.start_buffered(run_ids=run_ids))

    @act()
    def sweep(self) -> None:
        """Delete what is old."""
        self.do(lambda store: store.sweep_buckets())
        self.compare()

    def compare(self) -> None:
        """Compare schedules and what their ticks did, and the runs that these started."""

        async def all_of(store: Store) -> Any:
            return [
                (replace(each, revision=0), await store.list_buckets(each.name, limit=1000))
                for each in await store.list_schedules()
            ]

        self.both(all_of)
        self.learn()


@pytest.mark.timeout(600)
def test_both_stores_fire_schedules_alike_whatever_is_asked(module_database_url: str) -> None:
    run_seeds(SchedulesAgree, module_database_url, seeds=30, steps=40)
