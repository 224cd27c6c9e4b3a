"""T6. Schedules that publish to a topic or send to a message queue: once a tick, and no run."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput, UnknownQueue
from holdfast.store.port import DELIVERIES_TOPIC, WORK_TOPIC, Store, messages_topic
from holdfast.types import (
    BackfillFiring,
    NewSchedule,
    NewSubscription,
    Notice,
    QueueSettings,
    QueueTarget,
    Receive,
    RunFilter,
    RunTarget,
    SendTarget,
    StoredMessage,
    TickPolicy,
    UrlTarget,
    When,
    schedules_digest,
    tick_event,
    tick_jitter,
    tick_key,
    tick_text,
)

from .actors import SECOND, get
from .schedule_actors import MINUTE, NAME, ManualScheduler, new_schedule, summary

TOPIC = SendTarget(kind="topic", name="clock.hour", input='{"n": 1}')
QUEUE = SendTarget(kind="queue", name="polls", input='{"n": 2}')


@pytest.fixture
def sally(store: Store) -> ManualScheduler:
    """Return a scheduler that does what the test says."""
    return ManualScheduler(store)


async def create_queue(store: Store, **settings: Any) -> None:
    await store.create_queue(QueueSettings(name="polls", **settings))


async def messages(store: Store) -> list[StoredMessage]:
    """Receive what is due in the queue."""
    received = await store.receive_messages(Receive(queue="polls", limit=100))
    return [each for delivery in received.deliveries for each in delivery.messages]


async def test_a_schedule_that_sends_is_read_as_it_was_written(store: Store) -> None:
    await create_queue(store, fifo=True)
    full = SendTarget(
        kind="queue", name="polls", input='{"b":1,"a":[2.50]}', group="eu", headers={"team": "ops"}
    )
    for name, target in (("shop/a", full), ("shop/b", TOPIC)):
        new = new_schedule(name, target=target, overlap="allow")
        assert (await store.create_schedule(new))[0]
        found = await store.get_schedule(name)
        assert found is not None
        assert (found.target, found.policy) == (target, TickPolicy(overlap="allow"))


async def test_each_tick_publishes_an_event_once(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """The event's id follows from schedule and tick; its bucket says how many it reached."""
    await create_queue(store)
    url = UrlTarget(url="https://example.com/", secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    for target in (RunTarget(name="shop/order"), QueueTarget(queue="polls"), url):
        await store.subscribe(NewSubscription(pattern="clock.#", target=target))
    tick = await sally.create(target=TOPIC, overlap="allow")
    await clock.advance(60)
    due = await sally.take()
    fired = await sally.move(due, tick, next_tick_at=tick + MINUTE)
    assert {*fired.notices} == {
        Notice(WORK_TOPIC, "default"),
        Notice(messages_topic("polls"), "polls"),
        Notice(DELIVERIES_TOPIC, ""),
    }
    bucket = await sally.bucket(tick)
    assert (bucket.outcome, bucket.reached, bucket.run_id) == ("sent", 3, None)
    again = await sally.move(due, tick, next_tick_at=tick + MINUTE)
    assert (again.moved, list(again.notices)) == (frozenset(), [])
    [listed] = (await store.list_runs(RunFilter())).runs
    run = await get(store, listed.run_id)
    assert (run.input, run.headers) == (
        '{"n": 1}',
        {"holdfast-topic": "clock.hour", "holdfast-event": tick_key(NAME, tick)},
    )
    [message] = await messages(store)
    assert message.payload == '{"n": 1}'
    record = await sally.record()
    assert (record.last_tick_at, record.last_run_id, record.open_run_ids) == (tick, None, ())


async def test_an_event_that_reaches_nobody_was_sent(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    tick = await sally.create(target=TOPIC, overlap="allow")
    await clock.advance(60)
    assert (await sally.fire(tick)).reached == 0


async def test_each_tick_sends_a_message_once(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    await create_queue(store)
    target = SendTarget(kind="queue", name="polls", input='{"n": 2}', headers={"team": "ops"})
    tick = await sally.create(target=target, overlap="allow")
    await clock.advance(60)
    due = await sally.take()
    fired = await sally.move(due, tick, next_tick_at=tick + MINUTE)
    assert list(fired.notices) == [Notice(messages_topic("polls"), "polls")]
    assert (await sally.move(due, tick)).moved == frozenset()
    [message] = await messages(store)
    assert (message.payload, message.headers) == (
        '{"n": 2}',
        {"team": "ops", "holdfast-schedule": NAME, "holdfast-scheduled-at": tick_text(tick)},
    )
    bucket = await sally.bucket(tick)
    assert (bucket.outcome, bucket.message_id) == ("sent", message.message_id)
    assert (await store.list_runs(RunFilter())).runs == []


@pytest.mark.parametrize("group", [None, "eu"])
async def test_in_a_fifo_queue_the_group_is_the_schedule_unless_given(
    store: Store, sally: ManualScheduler, clock: Clock, group: str | None
) -> None:
    await create_queue(store, fifo=True)
    target = SendTarget(kind="queue", name="polls", group=group)
    tick = await sally.create(target=target, overlap="allow")
    await clock.advance(60)
    await sally.fire(tick)
    received = await store.receive_messages(Receive(queue="polls"))
    assert [each.group for each in received.deliveries] == [group or NAME]


async def test_jitter_delays_the_message(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    await create_queue(store, has_priorities=True)
    target = SendTarget(kind="queue", name="polls", priority=0)
    tick = await sally.create(target=target, overlap="allow", jitter_seconds=3600.0)
    await clock.advance(60)
    await sally.fire(tick)
    later = tick_jitter(NAME, tick, 3600) + (tick - await store.now()) / SECOND
    await clock.advance(later - 2)
    assert await messages(store) == []
    await clock.advance(4)
    assert len(await messages(store)) == 1


async def test_a_tick_that_cannot_be_sent_has_failed_and_says_why(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """The others of the same moment are sent; the next tick is when it is."""
    await create_queue(store)
    tick = await sally.create(target=QUEUE, overlap="allow")
    await store.delete_queue("polls")
    await clock.advance(60)
    bucket = await sally.fire(tick)
    assert (bucket.outcome, bucket.message_id) == ("failed", None)
    assert "no message queue 'polls'" in (bucket.error or "")
    await create_queue(store)
    await clock.advance(60)
    assert (await sally.fire(tick + MINUTE)).outcome == "sent"
    retried, _ = await store.trigger_schedule(NAME, at=tick)
    assert retried is not None
    assert retried.outcome == "sent"


async def test_what_is_asked_for_is_sent_once_a_tick(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """Triggers with one moment are one tick; a backfill leaves alone what was sent."""
    await create_queue(store)
    tick = await sally.create(target=QUEUE, overlap="allow")
    await clock.advance(200)
    await sally.fire(tick)
    for _ in range(2):
        bucket, _ = await store.trigger_schedule(NAME, at=tick + 1)
        assert bucket is not None
        assert (bucket.outcome, bucket.origin) == ("sent", "trigger")
    await store.backfill_schedule(NAME, tick, tick + MINUTE, backfill_id=uuid4())
    [due] = await store.due_backfills()
    await store.fire_backfill(
        BackfillFiring(
            backfill_id=due.backfill_id,
            position=due.position,
            new_position=due.until,
            ticks=[tick, tick + MINUTE],
        )
    )
    assert summary(await store.list_buckets(NAME)) == [("sent", None)] * 3
    assert len(await messages(store)) == 3


async def test_policies_of_overlap_are_refused_where_nothing_runs(store: Store) -> None:
    await create_queue(store)
    for target in (TOPIC, QUEUE):
        for overlap in ("skip", "buffer_one", "buffer_all", "cancel_running", "terminate_running"):
            with pytest.raises(InvalidInput, match=r"starts no run that could overlap.*'allow'"):
                await store.create_schedule(new_schedule(target=target, overlap=overlap))
    await store.create_schedule(new_schedule(target=TOPIC, overlap="allow"))
    now = await store.now()
    with pytest.raises(InvalidInput, match="starts no run that could overlap"):
        await store.trigger_schedule(NAME, overlap="skip")
    with pytest.raises(InvalidInput, match="starts no run that could overlap"):
        await store.backfill_schedule(NAME, now, now, backfill_id=uuid4(), overlap="buffer_all")
    assert (await store.trigger_schedule(NAME, overlap="allow"))[0] is not None


@pytest.mark.parametrize(
    "new",
    [
        new_schedule(target=SendTarget(kind="topic", name="a b"), overlap="allow"),
        new_schedule(target=SendTarget(kind="topic", name="a", group="x"), overlap="allow"),
        new_schedule(target=SendTarget(kind="topic", name="a", priority=1), overlap="allow"),
        new_schedule(
            target=SendTarget(kind="topic", name="a", headers={"a": "b"}), overlap="allow"
        ),
        new_schedule("alone", target=TOPIC, overlap="allow"),
        new_schedule(target=TOPIC, overlap="allow", jitter_seconds=1.0),
        new_schedule(target=SendTarget(kind="topic", name="a", input='"\\u0000"'), overlap="allow"),
        new_schedule(target=SendTarget(kind="queue", name="polls", group=""), overlap="allow"),
        new_schedule(target=SendTarget(kind="queue", name="polls", priority=9), overlap="allow"),
    ],
)
async def test_values_that_cannot_be_sent_are_refused(store: Store, new: NewSchedule) -> None:
    await create_queue(store)
    with pytest.raises(InvalidInput):
        await store.create_schedule(new)
    assert await store.list_schedules() == []


async def test_a_queue_that_does_not_exist_is_refused_to_users(store: Store) -> None:
    """Not to the code of an app: the queue may be created after its worker has started."""
    new = new_schedule(target=QUEUE, overlap="allow")
    with pytest.raises(UnknownQueue):
        await store.create_schedule(new)
    ensured, _ = await store.ensure_schedules("shop", schedules_digest([new]), [new])
    assert ensured.added == (NAME,)
    found = await store.get_schedule(NAME)
    assert found is not None
    assert found.target == QUEUE


async def test_a_schedule_may_begin_to_send_in_place_of_starting(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """SQL may change what a schedule does; a tick that waits for a run is sent after it."""
    tick = await sally.create(overlap="buffer_one")
    await clock.advance(130)
    started = await sally.fire(tick)
    assert (await sally.fire(tick + MINUTE)).outcome == "buffered"
    changed, _ = await store.update_schedule(
        NewSchedule(
            name=NAME, when=When(every_seconds=60), target=TOPIC, policy=TickPolicy(overlap="allow")
        )
    )
    assert changed
    assert started.run_id is not None
    assert (await get(store, started.run_id)).status == "running"
    await store.terminate_runs([started.run_id])
    assert (await store.start_buffered())[0] == 1
    bucket = await sally.bucket(tick + MINUTE)
    assert (bucket.outcome, bucket.reached) == ("sent", 0)
    assert (await sally.record()).buffered == 0


async def test_a_schedule_with_a_long_name_publishes(
    store: Store, sally: ManualScheduler, clock: Clock
) -> None:
    """An id of an event takes up to 255 bytes: it is a digest then."""
    name = f"{'a' * 128}/{'b' * 128}"
    await store.subscribe(NewSubscription(pattern="#", target=RunTarget(name="shop/order")))
    tick = await sally.create(name, target=TOPIC, overlap="allow")
    await clock.advance(60)
    assert (await sally.fire(tick, name=name)).reached == 1
    [run] = (await store.list_runs(RunFilter())).runs
    assert len(tick_event(name, tick)) == 64
    assert (run.headers or {})["holdfast-event"] == tick_event(name, tick)
