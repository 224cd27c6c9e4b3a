"""The synchronous client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest

from holdfast.errors import ConfigurationError, InvalidInput, ResultTimeout, RunNotFound
from holdfast.store.memory import MemoryStore
from holdfast.sync import SyncClient, SyncMessage

from .workflows import Finisher, Order, Receipt, app, order, tick


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def client(memory: MemoryStore) -> Iterator[SyncClient]:
    with SyncClient(store=memory, app=app) as client:
        yield client


def complete(store: MemoryStore, output: object) -> None:
    asyncio.run(Finisher(store).complete(output))


def test_a_run_is_started_awaited_and_looked_at(client: SyncClient, memory: MemoryStore) -> None:
    handle = client.start(order, Order(7), key="k")
    assert (handle.already_existed, handle.status_at_start) == (False, "running")
    assert client.start(order, Order(7), key="k").already_existed
    assert handle.signal("packed")
    complete(memory, Receipt(7, paid=True))
    assert handle.result(timeout=60) == Receipt(7, paid=True)
    assert client.handle(("order", "k")).result() == Receipt(7, paid=True)
    assert [entry.idx for entry in handle.log()] == [0, 1, 2]
    assert (handle.status(), handle.get().key, handle.values()) == ("completed", "k", {})


def test_iterators_yield_and_may_be_left_early(client: SyncClient) -> None:
    handles = client.start_many(tick, [None] * 25)
    assert {run.run_id for run in client.runs.iterate(limit=10)} == {
        each.run_id for each in handles
    }
    for _ in client.runs.iterate(limit=10):
        break
    handles[0].terminate()
    followed = [entry.event.type for entry in handles[0].follow_log()]
    assert followed == ["WorkflowStarted", "WorkflowTerminated"]


def test_errors_reach_the_caller(client: SyncClient) -> None:
    with pytest.raises(InvalidInput):
        client.start("order", 7)
    with pytest.raises(RunNotFound):
        client.runs.get(uuid4())
    with pytest.raises(ResultTimeout):
        client.run(tick, wait=0.01)


def test_threads_share_a_client(client: SyncClient) -> None:
    handles: list[bool] = []
    threads = [
        threading.Thread(target=lambda: handles.append(client.start(tick, key="k").already_existed))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(handles) == [False] + [True] * 7


async def test_it_serves_inside_a_running_event_loop(client: SyncClient) -> None:
    assert not client.start(tick).already_existed


def test_closed_it_says_so_and_leaves_no_thread(memory: MemoryStore) -> None:
    before = threading.active_count()
    client = SyncClient(store=memory)
    with pytest.raises(ConfigurationError, match="not open"):
        client.runs.list()
    client.open()
    following = client.runs.follow_log(client.start(tick).run_id)
    assert next(following).idx == 0
    client.close()
    client.close()
    assert threading.active_count() == before
    with pytest.raises(ConfigurationError, match="not open"):
        client.runs.list()


def test_a_message_has_its_values_and_its_calls(client: SyncClient) -> None:
    client.queues.create("parcels")
    sent = client.queues.send("parcels", Order(7), headers={"from": "ann"})
    [message] = client.queues.receive("parcels", type=Order)
    assert isinstance(message, SyncMessage)
    assert (message.id, message.queue, message.payload) == (sent, "parcels", Order(7))
    assert (message.headers, message.attempts) == ({"from": "ann"}, 1)
    assert message.extend("1h")
    assert message.nack(error="no van")
    [again] = client.queues.receive("parcels")
    assert (again.error, message.ack(), again.ack()) == ("no van", False, True)


def test_messages_are_acknowledged_as_a_set(client: SyncClient) -> None:
    client.queues.create("parcels")
    client.queues.send("parcels")
    client.queues.send("parcels")
    messages = client.queues.receive("parcels", 2)
    assert client.queues.extend(messages, "1h") == [True, True]
    assert client.queues.ack([messages[0], messages[1].receipt]) == [True, True]
