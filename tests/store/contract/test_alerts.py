"""Alerts: what they see, and the one event of each change."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import (
    AlertChange,
    AlertEvent,
    AlertInfo,
    AlertRule,
    DeclaredAlerts,
    MinuteCounts,
    NewSubscription,
    QueueTarget,
    RunTarget,
)
from holdfast.types.stats import BUCKETS, COUNTS, ENDED, percentile

from .actors import ManualWorker, start
from .test_messages import Mail

FAILED = AlertRule(
    name="order fails",
    kind="failed",
    subject="test/order",
    threshold=5,
    topic="ops",
    within_seconds=600,
)
STUCK = AlertRule(name="stuck", kind="stuck", subject="", threshold=1, topic="ops")
BACKLOG = AlertRule(name="waits", kind="backlog", subject="default", threshold=60, topic="ops")
SLOW = AlertRule(
    name="slow", kind="slow", subject="test/order", threshold=10, topic="ops", within_seconds=600
)
NOBODY = AlertRule(
    name="nobody", kind="no_worker", subject="default", threshold=1, topic="ops", lasting_seconds=60
)


def changed(rule: AlertRule, **fields: Any) -> AlertRule:
    return msgspec.structs.replace(rule, **fields)


class Ear:
    """Hears the events of a topic, each once."""

    def __init__(self, store: Store, topic: str = "ops") -> None:
        self._mail, self._topic = Mail(store, f"heard-{topic}"), topic

    async def listen(self) -> Ear:
        """Hear what is published from now on."""
        await self._mail.create()
        target = QueueTarget(queue=self._mail.name)
        await self._mail.store.subscribe(NewSubscription(pattern=self._topic, target=target))
        return self

    async def news(self) -> list[AlertEvent]:
        """Return the events since the last call, in order."""
        taken = await self._mail.take(visibility_seconds=40_000.0)
        return [msgspec.json.decode(each, type=AlertEvent) for each in taken]

    async def changes(self) -> list[tuple[str, bool, float | None]]:
        """Return the alert, what it became, and the value of each event since the last call."""
        return [(each.alert, each.active, each.value) for each in await self.news()]


def ended(minute: int, status: str, count: int, name: str = "test/order") -> MinuteCounts:
    """Return a minute in which so many runs ended, each in less than 100 ms."""
    counts = [0] * COUNTS
    counts[ENDED[status]] = counts[BUCKETS + 2] = count  # type: ignore[index]
    return MinuteCounts(minute, name, tuple(counts))


async def count(store: Store, worker: ManualWorker, *stats: MinuteCounts) -> None:
    """Let a worker report what it counted."""
    for each in stats:
        await store.heartbeat(worker.info(), [], lease_seconds=30, stats=[each])


async def declare(store: Store, *rules: AlertRule, app: str = "test") -> None:
    await store.declare_alerts(app, rules, starting=True)


async def look(
    store: Store, clock: Clock, seconds: float = 10, live: ManualWorker | None = None, **info: Any
) -> list[AlertChange]:
    """Let time pass, let a worker be heard, and look."""
    await clock.advance(seconds)
    if live is not None:
        await store.heartbeat(live.info(**info), [], lease_seconds=30, interval_seconds=10)
    return (await store.look_at_alerts())[0]


async def only(store: Store) -> AlertInfo:
    [found] = await store.list_alerts()
    return found


async def test_failures_are_told_once_when_they_begin_and_once_when_they_are_over(
    store: Store, ann: ManualWorker, bob: ManualWorker, clock: Clock
) -> None:
    ear = await Ear(store).listen()
    await declare(store, FAILED)
    now = await store.now()
    await count(store, ann, ended(now, "failed", 2), ended(now, "failed", 9, "test/other"))
    await count(store, bob, ended(now, "timed_out", 2), ended(now, "completed", 50))
    assert await look(store, clock) == []
    assert ((await only(store)).is_active, (await only(store)).value) == (False, 4)
    await count(store, bob, ended(now, "failed", 1))
    assert await look(store, clock) == [AlertChange("test", "order fails", True, 5)]
    [event] = await ear.news()
    assert msgspec.to_builtins(event) == {
        "alert": "order fails",
        "app": "test",
        "active": True,
        "kind": "failed",
        "subject": "test/order",
        "value": 5.0,
        "threshold": 5.0,
        "within_seconds": 600.0,
        "at": "2026-01-01T00:00:20Z",
    }
    assert event.text == "order fails: 5 runs of test/order failed in 10 m"
    for _ in range(5):
        assert await look(store, clock) == []
    assert await ear.news() == []
    began = await only(store)
    assert began.is_active
    assert began.changed_at == now + 20_000_000
    assert await look(store, clock, 610) == [AlertChange("test", "order fails", False, 0)]
    assert await ear.changes() == [("order fails", False, 0)]
    assert not (await only(store)).is_active


async def test_it_may_begin_again(store: Store, ann: ManualWorker, clock: Clock) -> None:
    ear = await Ear(store).listen()
    await declare(store, FAILED)
    for _ in range(2):
        await count(store, ann, ended(await store.now(), "failed", 5))
        await look(store, clock)
        await look(store, clock, 700)
    assert [active for _, active, _ in await ear.changes()] == [True, False, True, False]


async def test_an_alert_without_a_name_is_of_all_of_its_app(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    ear = await Ear(store).listen()
    await declare(store, changed(FAILED, subject=""))
    now = await store.now()
    others = [ended(now, "failed", 9, name) for name in ("testing/order", "tes/order")]
    await count(store, ann, ended(now, "failed", 4), *others)
    assert await look(store, clock) == []
    await count(store, ann, ended(now, "failed", 1, "test/other"))
    await look(store, clock)
    assert await ear.changes() == [("order fails", True, 5)]


async def test_it_is_looked_at_once_in_ten_seconds(store: Store, clock: Clock) -> None:
    await declare(store, STUCK)
    assert (await only(store)).looked_at is None
    await store.look_at_alerts()
    first = (await only(store)).looked_at
    await look(store, clock, 9)
    assert (await only(store)).looked_at == first
    await look(store, clock, 1)
    assert (await only(store)).looked_at == (first or 0) + 10_000_000


async def test_a_run_that_is_stuck_is_told(store: Store, ann: ManualWorker, clock: Clock) -> None:
    ear = await Ear(store).listen()
    await declare(store, STUCK)
    await declare(store, changed(STUCK, name="of another", subject="test/other"), STUCK)
    await start(store, name="test/order")
    handlers = ("test/order@1",)
    task = await ann.take(handlers=handlers)
    await ann.release(task, stuck="the code has changed", visible_at=None)
    await look(store, clock)
    assert await ear.changes() == [("stuck", True, 1)]
    task = await ann.take(handlers=handlers)
    await look(store, clock)
    assert await ear.changes() == []  # that a worker tries it again heals nothing
    await ann.finish(task)
    await look(store, clock)
    assert await ear.changes() == [("stuck", False, 0)]


async def test_a_task_that_waits_too_long_is_told(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    ear = await Ear(store).listen()
    await declare(store, BACKLOG)
    await start(store, priority=4)
    await start(store, name="other", queue="elsewhere")
    await clock.advance(50)
    await start(store, priority=0)
    assert await look(store, clock, 9) == []
    await look(store, clock)
    assert await ear.changes() == [("waits", True, 69)]
    assert len(await ann.claims()) == 2
    await look(store, clock)
    assert await ear.changes() == [("waits", False, 0)]


async def test_what_is_due_later_is_no_backlog(store: Store, clock: Clock) -> None:
    await declare(store, BACKLOG)
    await start(store, delay_seconds=200.0)
    assert await look(store, clock, 100) == []
    assert (await only(store)).value == 0


@pytest.mark.parametrize(
    "buckets",
    [
        {3: 100},
        {0: 1},
        {15: 2},
        {14: 1, 2: 3},
        {2: 95, 6: 5},
        {2: 94, 6: 6},
        {1: 7, 4: 3, 7: 1, 11: 1},
        {},
    ],
)
async def test_how_long_runs_took_is_seen_as_the_statistics_say(
    store: Store, ann: ManualWorker, clock: Clock, buckets: dict[int, int]
) -> None:
    await declare(store, SLOW)
    counts = [0] * COUNTS
    for place, number in buckets.items():
        counts[BUCKETS + place] = number
    await count(store, ann, MinuteCounts(await store.now(), "test/order", tuple(counts)))
    await look(store, clock)
    expected = percentile(counts[BUCKETS:], 0.95)
    assert (await only(store)).value == expected
    assert (await only(store)).is_active == (expected is not None and expected >= 10)


async def test_a_queue_that_nobody_serves_is_told_after_a_minute(
    store: Store, ann: ManualWorker, bob: ManualWorker, clock: Clock
) -> None:
    ear = await Ear(store).listen()
    await declare(store, NOBODY)
    assert await look(store, clock, 1, ann) == []
    assert (await only(store)).value == 1
    await bob.beat(queues=("other",))
    for _ in range(6):
        assert await look(store, clock) == []
    assert [each.name for each in await look(store, clock)] == ["nobody"]
    [event] = await ear.news()
    assert (event.active, event.value) == (True, 0)
    assert event.text == "nobody: live workers of queue default: 0"
    for _ in range(6):  # the end has to last, too
        assert await look(store, clock, 10, ann) == []
    await look(store, clock, 10, ann)
    assert [each.text for each in await ear.news()] == [
        "nobody is over: live workers of queue default: 1"
    ]


async def test_a_change_that_does_not_last_is_not_told(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    ear = await Ear(store).listen()
    await declare(store, NOBODY)
    for _ in range(4):
        for _ in range(4):
            await look(store, clock)
        await look(store, clock, 10, ann)
    assert await ear.news() == []


async def test_what_lasts_is_seen_by_looks_that_are_minutes_apart(
    store: Store, clock: Clock
) -> None:
    """As those of sweeps by cron."""
    await declare(store, changed(BACKLOG, lasting_seconds=200))
    await start(store)
    changes = [await look(store, clock, 90) for _ in range(4)]
    assert [len(each) for each in changes] == [0, 0, 0, 1]


async def test_workers_that_nobody_could_hear_are_not_missed(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    """After an absence of the database, a worker that is heard first sees no other."""
    ear = await Ear(store).listen()
    await declare(store, NOBODY)
    await look(store, clock)
    assert await look(store, clock, 300) == []
    await look(store, clock, 10, ann)
    assert await ear.news() == []


async def test_the_code_that_started_last_counts(store: Store, clock: Clock) -> None:
    """While a release is replaced, workers of both declare again and again."""
    old, new = changed(FAILED, threshold=5), changed(FAILED, threshold=50)
    assert await store.declare_alerts("test", [old], starting=True) == DeclaredAlerts(
        added=("order fails",)
    )
    assert await store.declare_alerts("test", [new], starting=True) == DeclaredAlerts(
        changed=("order fails",)
    )
    for _ in range(5):
        await clock.advance(30)
        for declared in (old, new):
            assert await store.declare_alerts("test", [declared]) == DeclaredAlerts()
        assert (await only(store)).rule == new
    await clock.advance(91)  # nobody has had the new code since
    assert await store.declare_alerts("test", [old]) == DeclaredAlerts(changed=("order fails",))
    assert (await only(store)).rule == old


async def test_an_alert_that_changes_its_rule_stays_active(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    ear = await Ear(store).listen()
    await declare(store, FAILED)
    await count(store, ann, ended(await store.now(), "failed", 6))
    await look(store, clock)
    await declare(store, changed(FAILED, threshold=6))
    await look(store, clock)
    assert await ear.changes() == [("order fails", True, 6)]
    await declare(store, changed(FAILED, threshold=7))
    await look(store, clock)
    assert await ear.changes() == [("order fails", False, 6)]


async def test_an_alert_that_the_code_has_no_more_is_over_and_gone(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    ear = await Ear(store).listen()
    await declare(store, FAILED, STUCK)
    await count(store, ann, ended(await store.now(), "failed", 6))
    await look(store, clock)
    assert await ear.changes() == [("order fails", True, 6)]
    started_at = await store.now()
    for _ in range(9):
        assert len(await store.list_alerts()) == 2
        await store.declare_alerts("test", [STUCK])
        await look(store, clock, 10, ann, started_at=started_at, handlers=("test/order@1",))
    assert (await only(store)).rule == STUCK
    [event] = await ear.news()
    assert (event.alert, event.active, event.value) == ("order fails", False, None)
    assert event.text == "order fails is over: its code is gone"


async def test_an_alert_stays_while_its_app_has_no_worker(
    store: Store, ann: ManualWorker, bob: ManualWorker, clock: Clock
) -> None:
    """That nobody serves a queue is seen by the workers of others."""
    await declare(store, NOBODY)
    started_at = await store.now()
    for _ in range(20):
        of_another = {"handlers": ("tes/order@1",), "queues": ("other",)}
        await look(store, clock, 10, ann, started_at=started_at, **of_another)
    assert (await only(store)).is_active
    await look(store, clock, 10, bob, started_at=await store.now(), handlers=("test/order@1",))
    assert (await only(store)).is_active  # it has just started, and may be about to declare it


async def test_an_alert_is_not_over_because_the_database_was_away(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    """Its worker could not declare it meanwhile, and may be about to."""
    ear = await Ear(store).listen()
    rule = changed(FAILED, within_seconds=3600)
    await declare(store, rule)
    app = {"started_at": await store.now(), "handlers": ("test/order@1",)}
    await count(store, ann, ended(await store.now(), "failed", 6))
    await look(store, clock, 10, ann, **app)
    assert await ear.changes() == [("order fails", True, 6)]
    for seconds in (300, 10, 10):
        assert await look(store, clock, seconds, ann, **app) == []
    await store.declare_alerts("test", [rule])
    for _ in range(6):
        assert await look(store, clock, 10, ann, **app) == []
    assert ((await only(store)).is_active, await ear.news()) == (True, [])


async def test_an_alert_stays_as_it_is_because_the_database_was_away(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    """Older code that is back first does not know that the newer code is gone."""
    older, newer = changed(FAILED, threshold=3), changed(FAILED, threshold=9)
    await declare(store, older)
    await store.declare_alerts("test", [newer], starting=True)
    info = ann.info(started_at=await store.now(), handlers=("test/order@1",))
    for seconds in (0, 100, *(10,) * 8):
        await clock.advance(seconds)
        await store.heartbeat(info, [], lease_seconds=30, interval_seconds=10)
        assert not (await store.declare_alerts("test", [older])).changed
    await clock.advance(10)
    await store.heartbeat(info, [], lease_seconds=30, interval_seconds=10)
    assert list((await store.declare_alerts("test", [older])).changed) == ["order fails"]


async def test_apps_have_alerts_of_their_own(store: Store) -> None:
    await declare(store, FAILED, app="b")
    await declare(store, STUCK, FAILED, app="a")
    found = [(each.app, each.rule.name) for each in await store.list_alerts()]
    assert found == [("a", "order fails"), ("a", "stuck"), ("b", "order fails")]


async def test_an_event_starts_a_run(store: Store, ann: ManualWorker, clock: Clock) -> None:
    target = RunTarget(name="test/tell", queue="urgent")
    await store.subscribe(NewSubscription(pattern="ops", match='{"active":true}', target=target))
    await declare(store, FAILED)
    await count(store, ann, ended(await store.now(), "failed", 6))
    await clock.advance(10)
    _, notices = await store.look_at_alerts()
    assert [each.payload for each in notices] == ["urgent"]
    task = await ann.take(queues=("urgent",), handlers=("test/tell@1",))
    assert json.loads(task.input)["alert"] == "order fails"


async def test_a_clock_that_is_set_back_does_not_stop_the_looks(store: Store, clock: Clock) -> None:
    await declare(store, STUCK)
    await look(store, clock)
    await clock.advance(-3600)
    await store.look_at_alerts()
    assert (await only(store)).looked_at == await store.now()
