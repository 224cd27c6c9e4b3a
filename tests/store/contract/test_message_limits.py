"""Limits of message queues: no more are in flight, or handed out in a period, than they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
import pytest_asyncio
from clocks import Clock

from holdfast.store.port import Store, messages_topic
from holdfast.types import (
    LimitRule,
    Notice,
    Receipt,
)

from .actors import SECOND
from .test_messages import Mail, payloads

KINDS = {
    "plain": {},
    "urgent": {"has_priorities": True},
    "filtered": {"has_filters": True},
    "fifo": {"fifo": True},
}


def limit(most: int = 2, **fields: Any) -> LimitRule:
    """Return a limit of the queue `mail`."""
    rule: dict[str, Any] = {"scope": "queue", "name": "mail", "kind": "concurrency", "most": most}
    return LimitRule(**rule | fields)


def rate(most: int = 2, period: float = 10, **fields: Any) -> LimitRule:
    """Return a rate of the queue `mail`."""
    return limit(most, kind="rate", period_seconds=period, **fields)


@pytest_asyncio.fixture(params=list(KINDS), loop_scope="module")
async def mail(store: Store, request: pytest.FixtureRequest) -> Mail:
    """Provide a queue of each kind."""
    queue = Mail(store)
    await queue.create(**KINDS[request.param])
    return queue


async def fill(mail: Mail, *payloads: object, **fields: Any) -> list[int]:
    """Send messages one after the other; in a FIFO queue each is a group of its own."""
    [info] = await mail.store.list_queues(mail.name)
    ids: list[int] = []
    for number, payload in enumerate(payloads):
        group = f"group-{len(ids)}-{payload}-{number}" if info.settings.fifo else None
        ids += await mail.send(json.dumps(payload), group=group, **fields)
    return ids


async def test_no_more_are_in_flight_than_the_limit(store: Store, mail: Mail) -> None:
    """What waits keeps its order, and its receives are not counted."""
    await fill(mail, 1, 2, 3, 4)
    await store.set_limit(limit(2))
    taken = [each for _ in range(2) for each in await mail.deliveries(1)]
    assert payloads(*taken) == ["1", "2"]
    assert await mail.take() == []
    acked, notices = await store.ack_messages([Receipt(taken[0].queue_id, taken[0].delivery_id)])
    assert acked == [True]
    assert Notice(messages_topic("mail"), "mail") in notices
    [third] = await mail.deliveries()
    assert [(each.payload, each.attempts) for each in third.messages] == [("3", 1)]
    assert await mail.take() == []


async def test_a_receive_of_many_takes_what_there_is_room_for(store: Store, mail: Mail) -> None:
    await fill(mail, 1, 2, 3, 4)
    await store.set_limit(limit(3))
    assert await mail.take(10) == ["1", "2", "3"]
    await store.set_limit(limit(4))
    assert await mail.take(10) == ["4"]


async def test_room_comes_back_when_a_visibility_ends(
    store: Store, clock: Clock, mail: Mail
) -> None:
    await fill(mail, 1, 2)
    await store.set_limit(limit(1))
    assert await mail.take(visibility_seconds=5) == ["1"]
    answer = await mail.answer()
    assert answer.deliveries == []
    assert answer.next_due_at == answer.now + 5 * SECOND
    await clock.advance(6)
    [again] = await mail.deliveries(1)
    assert again.messages[0].payload in ("1", "2")


async def test_each_value_of_a_key_has_its_own_room(store: Store, mail: Mail) -> None:
    """Those that have none are passed over, and come when there is room."""
    sent = [{"of": "ann", "n": 1}, {"of": "ann", "n": 2}, {"of": "bob", "n": 3}, {"n": 4}]
    await fill(mail, *sent)
    await store.set_limit(limit(1, key="input.of"))
    taken = await mail.deliveries()
    numbers = sorted(json.loads(each)["n"] for each in payloads(*taken))
    assert numbers == [1, 3, 4]
    assert await mail.take() == []
    for each in taken:
        await store.ack_messages([Receipt(each.queue_id, each.delivery_id)])
    assert [json.loads(each)["n"] for each in await mail.take()] == [2]


async def test_a_rate_hands_out_so_many_in_a_period(store: Store, clock: Clock, mail: Mail) -> None:
    """An acknowledgement gives nothing back."""
    await fill(mail, 1, 2, 3, 4, 5)
    await store.set_limit(rate(2, 10))
    assert await mail.take(1, pops=True) == ["1"]
    await clock.advance(4)
    assert await mail.take(pops=True) == ["2"]
    answer = await mail.answer()
    assert (answer.deliveries, answer.next_due_at) == ([], answer.now + 6 * SECOND)
    await clock.advance(7)
    assert await mail.take() == ["3"]
    await clock.advance(20)
    assert await mail.take() == ["4", "5"]
