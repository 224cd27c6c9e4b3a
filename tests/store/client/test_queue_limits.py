"""Limits of message queues as programs meet them: who waits is woken, and does not ask again."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast import Limit, Rate
from holdfast.client import Client, Outgoing
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.types import Receive, Received


class Looks:
    """Counts receives of a store."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._receive = store.receive_messages
        monkeypatch.setattr(store, "receive_messages", self)

    async def __call__(self, receive: Receive) -> Received:
        """Receive."""
        self.count += 1
        return await self._receive(receive)


async def waits(client: Client) -> asyncio.Task[list[str]]:
    """Begin to wait for a message; return when nothing was found."""

    async def receive() -> list[str]:
        return [str(each.payload) for each in await client.queues.receive("mail", wait="60s")]

    task = asyncio.create_task(receive())
    await asyncio.sleep(0.5)
    assert not task.done()
    return task


@pytest.mark.parametrize("how", ["ack", "nack", "raise", "remove"])
async def test_room_wakes_who_waits_for_it(client: Client, how: str) -> None:
    await client.queues.create("mail")
    await client.limits.set(Limit(1), queue="mail")
    await client.queues.send_many("mail", [Outgoing("a"), Outgoing("b")])
    [first] = await client.queues.receive("mail", 10, visibility="1h")
    task = await waits(client)
    began = time.monotonic()
    if how == "ack":
        assert await first.ack()
    elif how == "nack":
        assert await first.nack(delay="1h")
    elif how == "raise":
        await client.limits.set(Limit(2), queue="mail")
    else:
        await client.limits.remove(Limit, queue="mail")
    assert await task == ["b"]
    assert time.monotonic() - began < 1.5  # a poll comes later


async def test_a_full_queue_is_not_asked_again_and_again(
    client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.queues.create("mail")
    await client.limits.set(Limit(1, key="input.of"), queue="mail")
    await client.limits.set(Rate(100, per="1h"), queue="mail")
    await client.queues.send_many("mail", [Outgoing({"of": "ann"})] * 5)
    assert len(await client.queues.receive("mail", 10, visibility="1h")) == 1
    looks = Looks(store, monkeypatch)
    assert await client.queues.receive("mail", 10, wait="3s") == []
    assert looks.count < 10


async def test_a_rate_lets_who_waits_have_a_message_when_it_is_time(
    client: Client, store: Store
) -> None:
    if isinstance(store, MemoryStore):
        pytest.skip("its time stands still")
    await client.queues.create("mail")
    await client.limits.set(Rate(1, per="700ms"), queue="mail")
    await client.queues.send_many("mail", [Outgoing("a"), Outgoing("b")])
    began = time.monotonic()
    for payload in ("a", "b"):
        [message] = await client.queues.receive("mail", wait="30s")
        assert message.payload == payload
        assert await message.ack()
    assert 0.6 < time.monotonic() - began < 20
    assert [each.used for each in await client.limits.list()] == [1]
    await asyncio.sleep(0.7)
    assert [each.used for each in await client.limits.list()] == [0]
