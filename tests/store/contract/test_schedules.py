"""T6. Schedules: definitions, ticks that fire once, pauses, triggers, backfills."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec
import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import SCHEDULES_TOPIC, Store
from holdfast.types import (
    BackfillFiring,
    CancelledBackfills,
    NewSchedule,
    Notice,
    RunTarget,
    SkippedTicks,
    When,
    tick_jitter,
    tick_key,
    tick_text,
)
from holdfast.values.ids import keyed_run_id

from .actors import SECOND, ManualWorker, get
from .schedule_actors import (
    MINUTE,
    NAME,
    ORDER,
    ManualScheduler,
    end_run,
    new_schedule,
    run_of,
    summary,
)


@pytest.fixture
def sally(store: Store) -> ManualScheduler:
    """Return a scheduler that does what the test says."""
    return ManualScheduler(store)


@pytest.fixture
def sam(store: Store) -> ManualScheduler:
    """Return another one."""
    return ManualScheduler(store)


FULL = NewSchedule(
    name="shop/full",
    when=When(
        cron="0 9 * * 1-5",
        timezone="Europe/Berlin",
        starts_at=1_767_225_600_000_000,
        ends_at=1_777_225_600_000_001,
    ),
    target=RunTarget(
        kind="flow",
        name="shop/report",
        version=3,
        input='{"b":1,"a":[2.50]}',
        queue="slow",
        priority=1,
        timeout_seconds=60.5,
        retention_seconds=3600,
        tags=("x", "y"),
        headers={"team": "ops"},
    ),
    note="for the auditors",
)


async def test_a_schedule_is_read_as_it_was_written(store: Store) -> None:
    created, _ = await store.create_schedule(FULL)
    assert created
    found = await store.get_schedule("shop/full")
    assert found is not None
    assert (found.when, found.target, found.policy) == (FULL.when, FULL.target, FULL.policy)
    assert (found.note, found.paused_by, found.from_code) == ("for the auditors", None, False)
    assert (found.is_computed, found.next_tick_at, found.error) == (False, None, None)
    assert await store.get_schedule("shop/other") is None
    assert await store.list_buckets("shop/other") == []


async def test_a_name_is_taken_once(store: Store) -> None:
    await store.create_schedule(new_schedule())
    assert await store.create_schedule(new_schedule(overlap="allow")) == (False, [])
    found = await store.get_schedule(NAME)
    assert found is not None
    assert found.policy.overlap == "skip"


@pytest.mark.parametrize(
    "new",
    [
        new_schedule("no name"),
        new_schedule(when=When()),
        new_schedule(when=When(cron="* * * * *", every_seconds=60)),
        new_schedule(when=When(every_seconds=0.5)),
        new_schedule(when=When(every_seconds=60, timezone="")),
        new_schedule(when=When(every_seconds=60, starts_at=2, ends_at=1)),
        new_schedule(target=RunTarget(name="a b")),
        new_schedule(target=RunTarget(name="shop/order", version=0)),
        new_schedule(target=RunTarget(name="shop/order", priority=9)),
        new_schedule(target=RunTarget(name="shop/order", input='"\\u0000"')),
        new_schedule(overlap="never"),
        new_schedule(max_missed=1001),
        new_schedule(jitter_seconds=-1.0),
    ],
)
async def test_values_that_are_not_allowed_are_refused(store: Store, new: NewSchedule) -> None:
    with pytest.raises(InvalidInput):
        await store.create_schedule(new)
    assert await store.list_schedules() == []


async def test_schedules_are_listed_by_name(store: Store) -> None:
    for name in ("shop/b", "shop2/a", "shop/a", "bank/z"):
        await store.create_schedule(new_schedule(name))
    names = [each.name for each in await store.list_schedules()]
    assert names == ["bank/z", "shop/a", "shop/b", "shop2/a"]
    assert [each.name for each in await store.list_schedules(app="shop")] == ["shop/a", "shop/b"]
    page = await store.list_schedules(after="shop/a", limit=1)
    assert [each.name for each in page] == ["shop/b"]
    named = [each.name for each in await store.list_schedules(short_name="a")]
    assert named == ["shop/a", "shop2/a"]
    [found] = await store.list_schedules(short_name="shop/a")
    assert found == await store.get_schedule("shop/a")


async def test_schedules_that_may_not_fire_are_listed_alone(
    store: Store, clock: Clock, sally: ManualScheduler
) -> None:
    """Else a check of thousands that are well would read them all."""

    async def doubtful() -> list[str]:
        return [each.name for each in await store.list_schedules(doubtful=True)]

    await sally.create("shop/a")  # due in a minute
    await store.create_schedule(new_schedule("shop/b"))
    await clock.advance(1)
    assert await doubtful() == ["shop/b"]  # its tick is not computed yet
    await clock.advance(60)
    assert await doubtful() == ["shop/a", "shop/b"]
    await store.pause_schedule("shop/b")
    assert await doubtful() == ["shop/a"]


async def test_a_tick_starts_a_run_with_its_key(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    """The key, and so the id, follows from schedule and tick."""
    tick = await sally.create()
    assert await store.due_schedules() == []
    await clock.advance(60)
    bucket = await sally.fire(tick)
    assert (bucket.outcome, bucket.origin) == ("started", "tick")
    key = tick_key(NAME, tick)
    assert bucket.run_id == keyed_run_id("shop/order", key)
    run = await get(store, run_of(bucket))
    assert (run.key, run.input, run.full_name) == (key, '{"n": 1}', "shop/order")
    task = await ann.take(handlers=ORDER)
    assert task.headers == {"holdfast-schedule": NAME, "holdfast-scheduled-at": tick_text(tick)}
    found = await sally.record()
    assert (found.position, found.next_tick_at) == (tick, tick + MINUTE)
    assert (found.last_tick_at, found.last_run_id) == (tick, bucket.run_id)
    assert found.open_run_ids == (bucket.run_id,)


async def test_of_two_schedulers_one_moves_a_schedule(
    store: Store, sally: ManualScheduler, sam: ManualScheduler, clock: Clock
) -> None:
    tick = await sally.create()
    await clock.advance(60)
    first = await sally.take(lease_seconds=1)
    assert await store.due_schedules() == []  # leased
    await clock.advance(2)
    second = await sam.take()
    assert (await sam.move(second, tick, next_tick_at=tick + MINUTE)).moved == {NAME}
    assert (await sally.move(first, tick, next_tick_at=tick + MINUTE)).moved == frozenset()
    assert len(await store.list_buckets(NAME)) == 1


async def test_a_schedule_that_is_taken_ahead_is_given_once_until_its_tick_has_passed(
    store: Store, sally: ManualScheduler, sam: ManualScheduler, clock: Clock
) -> None:
    """A scheduler that looks as far ahead is given it when the lease is over, not before."""
    await sally.create()  # due in a minute
    await clock.advance(55)
    due = await sally.take(ahead_seconds=5, lease_seconds=2)
    for _ in range(6):  # until a second after the tick
        assert await store.due_schedules(ahead_seconds=5, lease_seconds=2) == []
        await clock.advance(1)
    await clock.advance(2)
    assert await sam.take(ahead_seconds=5, lease_seconds=2) == due


async def test_a_tick_of_the_future_does_not_fire(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """A scheduler's clock is ahead."""
    tick = await sally.create()
    await clock.advance(30)
    due = await sally.take(ahead_seconds=40)
    assert (await sally.move(due, tick, next_tick_at=None)).moved == frozenset()
    assert await store.list_buckets(NAME) == []


async def test_an_error_is_shown_and_tried_again(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    await store.create_schedule(new_schedule())
    due = await sally.take()
    assert (await sally.move(due, error="no such time zone")).moved == {NAME}
    assert (await sally.record()).error == "no such time zone"
    assert await store.due_schedules() == []
    await clock.advance(601)
    again = await sally.take()
    await sally.move(again, next_tick_at=again.position + 3600 * SECOND)
    assert (await sally.record()).error is None


async def test_a_paused_schedule_does_not_fire(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """Also if it was paused after a scheduler had computed it, or after it was due."""
    tick = await sally.create()
    await clock.advance(60)
    due = await sally.take()
    assert await store.pause_schedule(NAME, note="month end") is True
    assert await store.pause_schedule(NAME) is False
    assert (await sally.move(due, tick)).moved == frozenset()
    found = await sally.record()
    assert (found.paused_by, found.note) == ("user", "month end")
    assert found.paused_at == await store.now()
    await clock.advance(600)
    assert await store.due_schedules() == []
    assert (await store.resume_schedule(NAME))[0] is True
    assert (await store.resume_schedule(NAME))[0] is False
    resumed = await sally.take()
    assert (resumed.position, resumed.expected) == (await store.now(), None)
    assert (await sally.move(due, tick)).moved == frozenset()


async def test_an_unknown_schedule_is_none(store: Store) -> None:
    assert await store.pause_schedule(NAME) is None
    assert await store.resume_schedule(NAME) == (None, [])
    assert await store.trigger_schedule(NAME) == (None, [])
    assert await store.delete_schedule(NAME) is False
    assert await store.update_schedule(new_schedule()) == (False, [])
    asked, _ = await store.backfill_schedule(NAME, 0, 1, backfill_id=uuid4())
    assert asked is None


async def test_a_deleted_schedule_is_gone_with_its_buckets(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """A tick that was computed before does not fire, also if there is one of the same name."""
    tick = await sally.create()
    await clock.advance(60)
    due = await sally.take()
    await store.trigger_schedule(NAME)
    assert await store.delete_schedule(NAME) is True
    assert await store.list_buckets(NAME) == []
    await store.create_schedule(new_schedule())
    assert (await sally.move(due, tick)).moved == frozenset()


async def test_a_change_of_the_moments_begins_now(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    tick = await sally.create()
    await clock.advance(60)
    due = await sally.take()
    changed, _ = await store.update_schedule(new_schedule(when=When(every_seconds=7)))
    assert changed
    assert (await sally.move(due, tick)).moved == frozenset()
    again = await sally.take()
    assert (again.when.every_seconds, again.expected) == (7, None)
    assert again.position == await store.now()


async def test_a_change_of_the_target_keeps_what_is_due(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    tick = await sally.create()
    await clock.advance(60)
    due = await sally.take()
    record = await sally.record()
    new = new_schedule(target=RunTarget(name="shop/other"))
    assert (await store.update_schedule(new, revision=record.revision + 9))[0] is False
    assert (await store.update_schedule(new, revision=record.revision))[0] is True
    assert (await sally.move(due, tick)).moved == frozenset()
    bucket = await sally.fire(tick)
    assert (await get(store, run_of(bucket))).name == "other"


async def test_skipped_ticks_are_recorded(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    first = await sally.create()
    await clock.advance(600)
    due = await sally.take()
    gaps = [
        SkippedTicks(first, first + 2 * MINUTE, None, "too_late"),
        SkippedTicks(first + 3 * MINUTE, first + 3 * MINUTE, 1, "too_many"),
    ]
    last = first + 4 * MINUTE
    await sally.move(due, last, next_tick_at=last + MINUTE, skipped=gaps)
    buckets = await store.list_buckets(NAME)
    assert summary(buckets) == [("skipped", "too_late"), ("skipped", "too_many"), ("started", None)]
    oldest = buckets[-1]
    assert (oldest.tick_at, oldest.until, oldest.ticks) == (first, first + 2 * MINUTE, None)
    assert [each.tick_at for each in await store.list_buckets(NAME, before=last)] == [
        first + 3 * MINUTE,
        first,
    ]


async def test_jitter_delays_the_run_and_not_the_tick(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    tick = await sally.create(jitter_seconds=1000.0)
    await clock.advance(60)
    bucket = await sally.fire(tick)
    run = await get(store, run_of(bucket))
    delay = tick_jitter(NAME, tick, 1000.0)
    assert 1 < delay < 1000
    assert run.wait is not None
    assert run.wait.visible_at is not None
    assert abs(run.wait.visible_at - tick - delay * SECOND) <= 1
    assert await ann.claims(handlers=ORDER) == []
    assert run.key == tick_key(NAME, tick)


async def test_a_trigger_fires_at_once_also_of_a_paused_schedule(
    store: Store, sally: ManualScheduler
) -> None:
    """Repeated with its moment, it is one tick."""
    await sally.create()
    await store.pause_schedule(NAME)
    now = await store.now()
    bucket, notices = await store.trigger_schedule(NAME, at=now)
    assert bucket is not None
    assert (bucket.outcome, bucket.origin, bucket.tick_at) == ("started", "trigger", now)
    assert Notice("work", "default") in notices
    again, _ = await store.trigger_schedule(NAME, at=now)
    assert again == bucket
    other, _ = await store.trigger_schedule(NAME, at=now + 1)
    assert other is not None
    assert (other.outcome, other.cause) == ("skipped", "overlap")
    forced, _ = await store.trigger_schedule(NAME, at=now + 1, overlap="allow")
    assert forced is not None
    assert forced.outcome == "started"


async def test_a_backfill_fires_ticks_of_the_past(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """Ticks that started a run do not start another; those that were skipped do."""
    first = await sally.create()
    await clock.advance(600)
    second = first + MINUTE
    due = await sally.take()
    gap = SkippedTicks(first, first, 1, "too_many")
    await sally.move(due, second, next_tick_at=first + 99 * MINUTE, skipped=[gap])
    started = (await sally.bucket(second)).run_id
    backfill = uuid4()
    for asked in (True, False):
        answer, _ = await store.backfill_schedule(
            NAME, first, second, backfill_id=backfill, overlap="allow"
        )
        assert answer is asked
    assert (await sally.record()).backfills == 1
    [found] = await store.due_backfills()
    assert (found.schedule, found.position, found.until) == (NAME, first - 1, second)
    firing = BackfillFiring(
        backfill_id=backfill, position=first - 1, new_position=second, ticks=[first, second]
    )
    assert (await store.fire_backfill(firing))[0] is True
    assert (await store.fire_backfill(firing))[0] is False
    assert (await sally.record()).backfills == 0
    assert [(each.origin, each.outcome) for each in await store.list_buckets(NAME)] == [
        ("tick", "started"),
        ("backfill", "started"),
    ]
    assert (await sally.bucket(second)).run_id == started


async def test_a_backfill_of_a_range_that_was_skipped(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    first = await sally.create()
    await clock.advance(600)
    due = await sally.take()
    last = first + 4 * MINUTE
    gap = SkippedTicks(first, last, 5, "too_late")
    await sally.move(due, position=last, next_tick_at=last + MINUTE, skipped=[gap])
    backfill = uuid4()
    await store.backfill_schedule(NAME, first, first, backfill_id=backfill)
    firing = BackfillFiring(
        backfill_id=backfill, position=first - 1, new_position=first, ticks=[first]
    )
    await store.fire_backfill(firing)
    rest, fired = await store.list_buckets(NAME)
    assert (rest.tick_at, rest.until, rest.ticks) == (first + 1, last, 4)
    assert (fired.tick_at, fired.outcome) == (first, "started")


async def test_a_tick_of_a_range_that_was_skipped_fires_after_all(
    sally: ManualScheduler, clock: Clock
) -> None:
    first = await sally.create()
    await clock.advance(600)
    last = first + 4 * MINUTE
    gap = SkippedTicks(first, last, 5, "too_late")
    await sally.move(await sally.take(), position=last, next_tick_at=first, skipped=[gap])
    fired = await sally.fire(first)
    assert (fired.outcome, fired.until, fired.ticks) == ("started", None, 1)
    [rest, _] = await sally.store.list_buckets(NAME)
    assert (rest.tick_at, rest.until, rest.ticks) == (first + 1, last, 4)


async def test_a_backfill_continues_although_the_clock_has_gone_back(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """A scheduler had leased it, in what is now the future."""
    first = await sally.create()
    await clock.advance(7200)
    await store.backfill_schedule(NAME, first, first, backfill_id=uuid4())
    await store.due_backfills()
    assert await store.due_backfills() == []
    await clock.advance(-3600)
    assert (await store.next_look()).backfill_at == await store.now()
    assert len(await store.due_backfills()) == 1
    assert await store.due_backfills() == []


async def test_a_backfill_that_is_cancelled_fires_no_more_ticks(
    store: Store, sally: ManualScheduler, clock: Clock, ann: ManualWorker
) -> None:
    """Ticks that wait are skipped, and say so; what was started continues."""
    first = await sally.create()
    await clock.advance(600)
    backfill, second, third = uuid4(), first + MINUTE, first + 2 * MINUTE
    await store.backfill_schedule(NAME, first, third, backfill_id=backfill)
    portion = BackfillFiring(
        backfill_id=backfill, position=first - 1, new_position=second, ticks=[first, second]
    )
    assert (await store.fire_backfill(portion))[0] is True
    assert (await sally.record()).buffered == 1
    assert await store.cancel_backfills(NAME) == CancelledBackfills(1, 1)
    assert await store.cancel_backfills(NAME) == CancelledBackfills(0, 0)
    assert await store.cancel_backfills("shop/nobody") is None
    rest = BackfillFiring(backfill_id=backfill, position=second, new_position=third, ticks=[third])
    assert (await store.fire_backfill(rest))[0] is False
    assert await store.due_backfills() == []
    record = await sally.record()
    assert (record.buffered, record.backfills) == (0, 0)
    assert summary(await store.list_buckets(NAME)) == [("started", None), ("skipped", "cancelled")]
    await end_run(ann)
    assert (await store.start_buffered())[0] == 0


@pytest.mark.parametrize(("first", "last"), [(5, 4), (0, 10**17), (-(10**17), 0)])
async def test_ranges_that_cannot_be_backfilled_are_refused(
    store: Store, sally: ManualScheduler, first: int, last: int
) -> None:
    await sally.create()
    with pytest.raises(InvalidInput):
        await store.backfill_schedule(NAME, first, last, backfill_id=uuid4())


async def test_a_schedule_begins_again_although_the_clock_has_gone_back(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """It has dealt with an hour that comes again. What was skipped of it fires when it comes."""
    tick = await sally.create(overlap="allow")
    now = await store.now()
    await clock.advance(3600)
    last = tick + 59 * MINUTE
    skipped = SkippedTicks(first=tick, last=last - MINUTE, count=59, cause="too_many")
    due = await sally.take()
    await sally.move(due, last, next_tick_at=last + MINUTE, skipped=[skipped])
    await clock.advance(-3600)
    assert (await store.next_look()).at == last + MINUTE
    await store.sweep_buckets()
    assert (await sally.record()).position == now
    assert [each.outcome for each in await store.list_buckets(NAME)] == ["started"]
    await store.sweep_buckets()
    assert (await store.next_look()).at == now


@pytest.mark.parametrize("what", ["leased", "put off"])
async def test_no_lease_outlasts_a_clock_that_has_gone_back(
    store: Store, sally: ManualScheduler, clock: Clock, what: str
) -> None:
    """Of a scheduler that died, and of a schedule that could not be computed."""
    await sally.create()
    await clock.advance(3600)
    due = await sally.take()
    if what == "put off":
        await sally.move(due, error="no such time zone")
    await clock.advance(-3600)
    at = (await store.next_look()).at
    assert at is not None
    assert at > await store.now() + 3600 * SECOND
    await store.sweep_buckets()
    assert (await store.next_look()).at == await store.now()


async def test_a_schedule_that_is_due_in_a_day_or_paused_is_left_alone(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    tick = await sally.create(when=When(every_seconds=86_400))
    before = await sally.record()
    await store.sweep_buckets()
    assert await sally.record() == before
    await clock.advance(86_400)
    await sally.fire(tick)
    await store.pause_schedule(NAME)
    await clock.advance(-86_400)
    before = await sally.record()
    await store.sweep_buckets()
    assert await sally.record() == before


async def test_old_buckets_are_deleted(store: Store, sally: ManualScheduler, clock: Clock) -> None:
    """Those of buffered ticks stay: their runs are still to be started."""
    tick = await sally.create(bucket_retention_seconds=100, overlap="buffer_one")
    await clock.advance(60)
    await sally.fire(tick)
    await clock.advance(60)
    await sally.fire(tick + MINUTE)
    assert await store.sweep_buckets() == 0
    await clock.advance(101)
    assert await store.sweep_buckets(limit=1) == 1
    assert await store.sweep_buckets() == 0
    assert summary(await store.list_buckets(NAME)) == [("buffered", None)]


@pytest.mark.parametrize(("before", "after", "deleted"), [(100, 1, 0), (1, 100, 1)])
async def test_a_bucket_is_kept_as_long_as_its_schedule_said_when_it_was_handled(
    store: Store, sally: ManualScheduler, clock: Clock, before: int, after: int, deleted: int
) -> None:
    tick = await sally.create(bucket_retention_seconds=before)
    await clock.advance(60)
    await sally.fire(tick)
    assert (await store.update_schedule(new_schedule(bucket_retention_seconds=after)))[0] is True
    await clock.advance(10)
    assert await store.sweep_buckets() == deleted


async def test_the_next_look_is_when_something_is_due(store: Store, sally: ManualScheduler) -> None:
    assert msgspec.structs.astuple(await store.next_look()) == (None, None, False)
    tick = await sally.create()
    assert (await store.next_look()).at == tick
    await store.pause_schedule(NAME)
    assert (await store.next_look()).at is None


async def test_changes_tell_schedulers(store: Store, sally: ManualScheduler) -> None:
    heard: list[str] = []
    stop = await store.listen(SCHEDULES_TOPIC, heard.append)
    calls: list[Any] = [
        store.create_schedule(new_schedule()),
        store.update_schedule(new_schedule(overlap="allow")),
    ]
    for call in calls:
        _, notices = await call
        await store.notify(notices)
    await store.pause_schedule(NAME)
    await store.notify((await store.resume_schedule(NAME))[1])
    marker = Notice(SCHEDULES_TOPIC, "marker")
    while "marker" not in heard:  # a listener needs a moment to be told
        await store.notify([marker])
    assert heard[:4] == [NAME, NAME, NAME, "marker"]
    await stop()


async def test_leases_that_are_given_back_are_others_at_once(
    store: Store, sally: ManualScheduler, sam: ManualScheduler, clock: Clock
) -> None:
    tick = await sally.create()
    due = await sally.take(ahead_seconds=61.0, lease_seconds=30.0)
    await clock.advance(60)
    assert await store.due_schedules() == []
    await store.release_schedules([due], [])
    assert await sam.take() == due
    await store.release_schedules([msgspec.structs.replace(due, expected=tick - 1)], [])
    assert await store.due_schedules() == []  # not that lease: it was of another tick
    assert (await sam.move(due, tick, next_tick_at=tick + MINUTE)).moved == {NAME}
    await store.release_schedules([due], [])
    assert (await store.next_look()).at == tick + MINUTE
    await store.backfill_schedule(NAME, tick, tick, backfill_id=uuid4())
    given = await store.due_backfills()
    assert await store.due_backfills() == []
    await store.release_schedules([], given)
    assert await store.due_backfills() == given
