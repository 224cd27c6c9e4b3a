"""The clock is set forward by an hour, and back: what was due at once then does not wait for it."""

from __future__ import annotations

from typing import Any

import pytest
from clocks import Clock
from tests.store.contract.test_deliveries import subscribe
from tests.store.contract.test_messages import Mail, payloads, receipts

from holdfast.store.port import Store
from holdfast.types import LimitRule, MessageReturn, NewEvent, Receipt

from .actors import ManualWorker, signal, start

HOUR = 3600
SECOND = 1_000_000


async def set_back(store: Store, clock: Clock, ann: ManualWorker, seconds: float = HOUR) -> None:
    """Set the clock back; a worker notices, and its next sweep begins again."""
    await ann.beat()
    await clock.advance(-seconds)
    await ann.beat()
    await store.sweep_buckets()


async def test_a_run_that_was_started_ahead_begins(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await clock.advance(HOUR)
    run_id = await start(store)
    await set_back(store, clock, ann)
    assert await ann.claims() == [run_id]


async def test_a_run_that_was_signalled_ahead_goes_on(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    run_id = await start(store)
    await ann.suspend(await ann.take(), awaiting=("packed",))
    await clock.advance(HOUR)
    await signal(store, run_id)
    await set_back(store, clock, ann)
    assert await ann.claims() == [run_id]


@pytest.mark.parametrize("worker_is", ["dead", "alive"])
async def test_one_worker_that_was_heard_ahead_is_enough(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker, worker_is: str
) -> None:
    await clock.advance(HOUR)
    run_id = await start(store)
    await (ann if worker_is == "alive" else bob).beat()
    await clock.advance(-HOUR)
    await ann.beat()
    await store.sweep_buckets()
    assert await ann.claims() == [run_id]


@pytest.mark.parametrize("delay", [2 * 60, HOUR, 30 * 24 * HOUR])
async def test_a_moment_stays_what_it_is(
    store: Store, clock: Clock, ann: ManualWorker, delay: int
) -> None:
    """Whether it was named before the clock was set, meanwhile, or afterwards."""
    await start(store, delay_seconds=delay + HOUR)
    await clock.advance(HOUR)
    ahead = await start(store, delay_seconds=delay)
    await ann.beat()
    await clock.advance(-HOUR)
    await start(store, delay_seconds=delay + HOUR)
    await ann.beat()
    for _ in range(3):
        await store.sweep_buckets()
    assert await ann.claims() == []
    await clock.advance(HOUR + delay - 1)
    assert await ann.claims() == []
    await clock.advance(1)
    assert ahead in (claimed := await ann.claims())
    assert len(claimed) == 3


async def test_a_sleep_that_was_begun_before_ends_when_it_should(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    run_id = await start(store)
    await ann.suspend(await ann.take(), until=await store.now() + 1800 * SECOND)
    await clock.advance(HOUR)
    await set_back(store, clock, ann)
    assert await ann.claims() == []
    await clock.advance(1800)
    assert await ann.claims() == [run_id]


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({}, {}),
        ({"has_priorities": True}, {"priority": 1}),
        ({"has_filters": True}, {}),
        ({"fifo": True}, {"group": "ann"}),
    ],
    ids=["plain", "priorities", "filters", "fifo"],
)
async def test_a_message_that_was_sent_ahead_is_received(
    store: Store, clock: Clock, ann: ManualWorker, settings: Any, fields: Any
) -> None:
    mail = Mail(store)
    await mail.create(**settings)
    await clock.advance(HOUR)
    await mail.send("1", **fields)
    await set_back(store, clock, ann)
    assert await mail.take() == ["1"]


@pytest.mark.parametrize("filters", [False, True])
async def test_a_message_that_waits_for_a_limit_is_received(
    store: Store, clock: Clock, ann: ManualWorker, filters: bool
) -> None:
    mail = Mail(store)
    await mail.create(has_filters=filters)
    limit = LimitRule(scope="queue", name="mail", kind="concurrency", most=1, key="input")
    await store.set_limit(limit)
    await clock.advance(HOUR)
    await mail.send("1", "1")
    [first] = await mail.deliveries()
    assert await mail.take() == []
    await set_back(store, clock, ann)
    await store.ack_messages([Receipt(first.queue_id, first.delivery_id)])
    assert await mail.take() == ["1"]
    assert await mail.take() == []


async def test_a_delayed_message_comes_when_it_should(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    mail = Mail(store)
    await mail.create()
    await mail.send("1", delay_seconds=1800)
    await clock.advance(HOUR)
    await mail.send("2", delay_seconds=600)
    await set_back(store, clock, ann)
    assert await mail.take() == []
    await clock.advance(1800)
    assert await mail.take() == ["1"]


async def test_what_a_consumer_took_ahead_comes_back_after_the_visibility(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    mail = Mail(store)
    await mail.create()
    await mail.send("1")
    await clock.advance(HOUR)
    assert payloads(*await mail.deliveries()) == ["1"]
    await set_back(store, clock, ann)
    await clock.advance(29)
    assert await mail.take() == []
    await clock.advance(2)
    assert await mail.take() == ["1"]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_visibility_that_a_consumer_asked_for_is_kept(
    store: Store, clock: Clock, ann: ManualWorker, when: str
) -> None:
    mail = Mail(store)
    await mail.create()
    await mail.send("1")
    if when == "meanwhile":
        await clock.advance(HOUR)
    await mail.take(visibility_seconds=1800)
    if when == "before":
        await clock.advance(HOUR / 4)
        await set_back(store, clock, ann, HOUR / 4)
    else:
        await set_back(store, clock, ann)
    await clock.advance(1799)
    assert await mail.take() == []
    await clock.advance(2)
    assert await mail.take() == ["1"]


async def test_what_a_consumer_says_after_the_clock_was_set_back_stays(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """It extends the visibility of one message, and gives another back for later."""
    mail = Mail(store)
    await mail.create()
    await clock.advance(HOUR)
    await mail.send("1", "2")
    [extended], [given] = await mail.deliveries(1), await mail.deliveries(1)
    await ann.beat()
    await clock.advance(-HOUR)
    await store.extend_deliveries(receipts(extended), seconds=1200)
    await store.return_messages([MessageReturn(receipts(given)[0], delay_seconds=600)])
    await ann.beat()
    await store.sweep_buckets()
    assert await mail.take() == []
    await clock.advance(600)
    assert await mail.take() == ["2"]
    await clock.advance(599)
    assert await mail.take() == ["2"]
    await clock.advance(1)
    assert await mail.take() == ["1"]


async def test_a_pause_that_begins_after_the_clock_was_set_back_is_kept(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await clock.advance(HOUR)
    run_id = await start(store)
    task = await ann.take()
    await ann.beat()
    await clock.advance(-HOUR)
    await ann.release(task, visible_at=await store.now() + 300 * SECOND, stuck="no such step")
    await ann.beat()
    await store.sweep_buckets()
    await clock.advance(299)
    assert await ann.claims() == []
    await clock.advance(1)
    assert await ann.claims() == [run_id]


async def test_an_event_that_was_published_ahead_is_delivered(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await subscribe(store)
    await clock.advance(HOUR)
    await store.publish(NewEvent(topic="orders", payload="1"))
    await set_back(store, clock, ann)
    assert len(await store.claim_deliveries(limit=10)) == 1


async def test_a_clock_that_is_set_back_twice_is_followed_twice(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    for _ in range(2):
        await clock.advance(HOUR)
        run_id = await start(store)
        await set_back(store, clock, ann)
        assert await ann.claims() == [run_id]


async def test_nothing_is_hastened_while_no_clock_was_set(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await start(store, delay_seconds=30)
    for _ in range(3):
        await clock.advance(5)
        await ann.beat()
        await store.sweep_buckets()
    assert await ann.claims() == []
