"""A client that uses ever new queues, and starts ever new names, keeps little of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sized

import pytest

from holdfast import Client
from holdfast.client import naming
from holdfast.store import receiver
from holdfast.store.memory import MemoryStore
from holdfast.store.receiver import Receiver
from holdfast.store.shared_calls import Coalescer
from holdfast.types import Received


def count(kind: type[object]) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


async def use(client: Client, queue: str) -> None:
    await client.queues.create(queue)
    await client.queues.send(queue, "an answer")
    [message] = await client.queues.receive(queue)
    await message.ack()
    assert await client.queues.receive(queue, wait="1ms") == []  # it listens now
    await client.queues.delete(queue)


async def test_queues_that_nobody_uses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MOST_IDLE", 3)
    async with Client(store=MemoryStore()) as client:
        await use(client, "first")
        before = count(Receiver), count(Coalescer), count(Received)
        for number in range(20):
            await use(client, f"reply-{number}")
        assert count(Receiver) - before[0] <= 2
        assert count(Coalescer) <= before[1]
        assert count(Received) <= before[2]  # with its messages


async def test_what_waits_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MOST_IDLE", 3)
    queues = [f"waiting-{number}" for number in range(10)]
    async with Client(store=MemoryStore()) as client:
        for queue in queues:
            await client.queues.create(queue)
        waits = [asyncio.create_task(client.queues.receive(q, wait="1m")) for q in queues]
        await asyncio.sleep(0)
        for number in range(10):
            await use(client, f"other-{number}")
        for queue in queues:
            await client.queues.send(queue, queue)
        found = [[message.payload for message in await wait] for wait in waits]
    assert found == [[queue] for queue in queues]


async def test_names_that_nobody_knows_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "_MOST_KNOWN", 3)
    names = naming.Names(MemoryStore(), None)
    for number in range(20):
        assert await names.flow(f"other/work-{number}") is None
        await names.warn_if_unknown(f"other/work-{number}")
    kept = [each for each in vars(names).values() if isinstance(each, Sized)]
    assert [len(each) for each in kept if len(each) > 3] == []
