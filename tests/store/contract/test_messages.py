"""Message queues: what is sent is received once, in order, until it is acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput, QueueExists, QueueInUse, UnknownQueue
from holdfast.store.port import Store
from holdfast.types import (
    MessageDelivery,
    MessageReturn,
    NewMessage,
    QueueSettings,
    Receipt,
    Receive,
    Received,
)


@dataclass
class Mail:
    """A queue, by what tests do with it."""

    store: Store
    name: str = "mail"

    async def create(self, **settings: Any) -> bool:
        """Create the queue."""
        return await self.store.create_queue(QueueSettings(name=self.name, **settings))

    async def send(self, *payloads: str, **fields: Any) -> list[int]:
        """Send messages with the same options."""
        return (
            await self.store.send_messages(
                self.name, [NewMessage(payload, **fields) for payload in payloads]
            )
        )[0]

    async def answer(self, limit: int = 10, **fields: Any) -> Received:
        """Receive; return the whole answer."""
        return await self.store.receive_messages(Receive(queue=self.name, limit=limit, **fields))

    async def take(self, limit: int = 10, **fields: Any) -> list[str]:
        """Receive; return the payloads."""
        return payloads(*(await self.answer(limit, **fields)).deliveries)

    async def deliveries(self, limit: int = 10, **fields: Any) -> list[MessageDelivery]:
        """Receive; return the deliveries."""
        return list((await self.answer(limit, **fields)).deliveries)


def payloads(*deliveries: MessageDelivery) -> list[str]:
    """Return what deliveries have."""
    return [message.payload for each in deliveries for message in each.messages]


def receipts(*deliveries: MessageDelivery) -> list[Receipt]:
    """Return a receipt for each message."""
    return [
        Receipt(each.queue_id, each.delivery_id, place)
        for each in deliveries
        for place in range(1, len(each.messages) + 1)
    ]


@pytest.fixture
def mail(store: Store) -> Mail:
    """Return a queue that does not exist yet."""
    return Mail(store)


async def test_a_message_is_received_until_it_is_acknowledged(mail: Mail, clock: Clock) -> None:
    assert await mail.create()
    ids = await mail.send('{"id":1}', '{"id":2}', headers={"from": "ann"})
    [delivery] = await mail.deliveries()
    assert [message.message_id for message in delivery.messages] == ids
    assert [message.attempts for message in delivery.messages] == [1, 1]
    assert delivery.messages[0].headers == {"from": "ann"}
    assert await mail.take() == []
    acked, _ = await mail.store.ack_messages(receipts(delivery)[:1])
    assert acked == [True]
    await clock.advance(31)
    [again] = await mail.deliveries()
    assert [(each.message_id, each.attempts) for each in again.messages] == [(ids[1], 2)]
    assert again.messages[0].error == "the visibility timeout ended"


async def test_an_old_receipt_changes_nothing(mail: Mail, clock: Clock) -> None:
    await mail.create()
    await mail.send("1")
    [delivery] = await mail.deliveries()
    await clock.advance(31)
    assert await mail.take() == ["1"]
    old = receipts(delivery)
    assert (await mail.store.ack_messages(old))[0] == [False]
    assert (await mail.store.return_messages([MessageReturn(old[0])]))[0] == [False]
    assert await mail.store.extend_deliveries(old, seconds=60) == [False]
    await clock.advance(31)
    assert await mail.take() == ["1"]


async def test_acks_travel_with_a_receive(mail: Mail) -> None:
    await mail.create()
    await mail.send("1", "2", "3")
    [first] = await mail.deliveries(2)
    answer = await mail.answer(acks=[first.delivery_id, uuid4()])
    assert list(answer.acked) == [True, False]
    assert payloads(*answer.deliveries) == ["3"]
    assert (await mail.store.ack_messages(receipts(first)))[0] == [False, False]


async def test_what_is_given_back_comes_again_after_its_delay(mail: Mail, clock: Clock) -> None:
    await mail.create()
    await mail.send("1", "2")
    [delivery] = await mail.deliveries()
    one, two = receipts(delivery)
    returned, notices = await mail.store.return_messages(
        [MessageReturn(one, delay_seconds=10, error="busy"), MessageReturn(two, counted=False)]
    )
    assert returned == [True, True]
    assert [notice.payload for notice in notices] == ["mail"]
    [again] = await mail.deliveries()
    assert [(each.payload, each.attempts) for each in again.messages] == [("2", 1)]
    await clock.advance(10)
    [late] = await mail.deliveries()
    assert [(each.payload, each.attempts, each.error) for each in late.messages] == [
        ("1", 2, "busy")
    ]


async def test_a_delayed_message_is_due_later(mail: Mail, clock: Clock) -> None:
    await mail.create()
    await mail.send("1", delay_seconds=5)
    empty = await mail.answer()
    assert empty.next_due_at == empty.now + 5_000_000
    await clock.advance(5)
    assert await mail.take() == ["1"]


async def test_an_extended_delivery_stays_in_flight(mail: Mail, clock: Clock) -> None:
    await mail.create()
    await mail.send("1")
    [delivery] = await mail.deliveries(visibility_seconds=10)
    await clock.advance(9)
    assert await mail.store.extend_deliveries(receipts(delivery), seconds=10) == [True]
    await clock.advance(9)
    assert await mail.take() == []
    await clock.advance(1)
    assert await mail.take() == ["1"]


async def test_a_message_that_was_received_too_often_is_a_dead_letter(
    mail: Mail, clock: Clock
) -> None:
    await mail.create(max_receives=2, visibility_seconds=1)
    await mail.send("1")
    for _ in range(2):
        assert await mail.take() == ["1"]
        await clock.advance(1)
    assert await mail.take() == []
    [dead] = await Mail(mail.store, "mail.dead").deliveries()
    assert [(each.payload, each.attempts) for each in dead.messages] == [("1", 1)]
    assert dead.messages[0].error == "the visibility timeout ended"


async def test_groups_are_received_in_their_order_one_delivery_at_a_time(mail: Mail) -> None:
    await mail.create(fifo=True)
    await mail.send("1", "2", "3", group="ann")
    await mail.send("4", group="bob")
    first = await mail.deliveries()
    assert {each.group: payloads(each) for each in first} == {"ann": ["1"], "bob": ["4"]}
    assert await mail.take() == []
    [ann] = [each for each in first if each.group == "ann"]
    _, notices = await mail.store.ack_messages(receipts(ann))
    assert [notice.payload for notice in notices] == ["mail"]
    [second] = await mail.deliveries(per_group=5)
    assert payloads(second) == ["2", "3"]


async def test_the_same_deduplication_id_is_the_same_message(mail: Mail, clock: Clock) -> None:
    await mail.create(dedup_seconds=60)
    [first] = await mail.send("1", dedup_id="a")
    assert await mail.send("2", "3", dedup_id="a") == [first, first]
    assert await mail.take() == ["1"]
    await clock.advance(60)
    [later] = await mail.send("4", dedup_id="a")
    assert later != first
    assert sorted(await mail.take()) == ["1", "4"]


async def test_urgent_messages_come_first(mail: Mail) -> None:
    await mail.create(has_priorities=True)
    await mail.send("1", priority=4)
    await mail.send("2")
    await mail.send("3", priority=0)
    assert await mail.take(2) == ["3", "2"]


async def test_a_condition_is_met_by_what_contains_it(mail: Mail) -> None:
    await mail.create(has_filters=True)
    await mail.send('{"kind":"a","n":1}', '{"kind":"b"}', "[1,2]", "1", "null")
    assert await mail.take(contains='{"kind":"b"}') == ['{"kind":"b"}']
    assert await mail.take(contains="[2]") == ["[1,2]"]
    assert await mail.take(contains="null") == ["null"]
    assert await mail.take() == ['{"kind":"a","n":1}', "1"]


async def test_large_payloads_come_back_whole(mail: Mail) -> None:
    await mail.create()
    large = f'"{"x" * 100_000}"'
    await mail.send("1", large, "2")
    [delivery] = await mail.deliveries()
    assert payloads(delivery) == ["1", large, "2"]
    await mail.store.return_messages([MessageReturn(each) for each in receipts(delivery)])
    assert sorted(await mail.take(), key=len) == ["1", "2", large]


async def test_a_purge_leaves_what_is_in_flight(mail: Mail) -> None:
    await mail.create()
    await mail.send("1", "2", "3")
    [delivery] = await mail.deliveries(1)
    assert await mail.store.purge_messages("mail") == 2
    assert await mail.store.purge_messages("mail") == 0
    await mail.store.return_messages([MessageReturn(receipts(delivery)[0])])
    assert await mail.take() == ["1"]


async def test_a_queue_is_created_once_and_deleted_whole(mail: Mail) -> None:
    assert await mail.create(max_receives=3)
    assert not await mail.create(max_receives=3)
    with pytest.raises(QueueExists, match="mail"):
        await mail.create(max_receives=4)
    assert [each.settings.name for each in await mail.store.list_queues()] == ["mail", "mail.dead"]
    with pytest.raises(QueueInUse, match="dead letters of queue mail"):
        await mail.store.delete_queue("mail.dead")
    await mail.send("1")
    assert await mail.store.delete_queue("mail")
    assert not await mail.store.delete_queue("mail")
    with pytest.raises(UnknownQueue, match="mail"):
        await mail.send("2")
    with pytest.raises(UnknownQueue, match="mail"):
        await mail.take()
    await mail.create()
    assert await mail.take() == []


async def test_a_paused_queue_gives_nothing(mail: Mail) -> None:
    await mail.create()
    await mail.send("1")
    await mail.store.set_pause("queue", "mail", paused=True)
    assert await mail.take() == []
    await mail.store.set_pause("queue", "mail", paused=False)
    assert await mail.take() == ["1"]


@pytest.mark.parametrize(
    ("settings", "fields", "why"),
    [
        ({"fifo": True}, {}, "needs a group"),
        ({}, {"group": "a"}, "not FIFO"),
        ({}, {"priority": 1}, "without priorities"),
        ({"has_priorities": True}, {"priority": 5}, "priority"),
        ({}, {"delay_seconds": -1.0}, "delay"),
        ({}, {"dedup_id": "x" * 1025}, "deduplication id"),
    ],
)
async def test_a_message_that_does_not_fit_the_queue_is_refused(
    mail: Mail, settings: dict[str, Any], fields: dict[str, Any], why: str
) -> None:
    await mail.create(**settings)
    with pytest.raises(InvalidInput, match=why):
        await mail.send("1", **fields)
