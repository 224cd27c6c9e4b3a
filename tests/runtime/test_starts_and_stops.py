"""What calls of a worker's start and stop that meet, or come again, do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from holdfast import App, Context
from holdfast.client import Client
from holdfast.errors import ConfigurationError
from holdfast.store.memory import MemoryStore
from holdfast.worker import Worker

app = App("shop")


@app.workflow
async def double(ctx: Context, number: int) -> int:
    return number * 2


class AnswersLater(MemoryStore):
    """A store whose answers take a moment, as those of a database do."""

    async def now(self) -> int:
        await asyncio.sleep(0)
        return await super().now()

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        await asyncio.sleep(0)
        return await super().listen(topic, callback)

    @property
    def heard_topics(self) -> list[str]:
        return [each.topic for each in self._listeners]


async def _workers(store: MemoryStore) -> list[str]:
    return [each.worker_id for each in await store.list_workers()]


async def test_a_stop_that_comes_while_the_worker_starts_is_not_lost() -> None:
    store = AnswersLater()
    worker = Worker(app, store)
    before = asyncio.all_tasks()
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    await worker.stop(grace=0)
    await starting
    assert await _workers(store) == []
    assert asyncio.all_tasks() == before


async def test_a_stop_that_is_cancelled_while_the_worker_starts_is_made_to_its_end() -> None:
    store = AnswersLater()
    worker = Worker(app, store)
    before = asyncio.all_tasks()
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(worker.stop(grace=0))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await starting
    assert (await _workers(store), store.heard_topics) == ([], [])
    assert asyncio.all_tasks() == before


async def test_two_starts_at_once_start_the_worker_once() -> None:
    store = AnswersLater()
    worker = Worker(app, store)
    before = asyncio.all_tasks()
    await asyncio.gather(worker.start(), worker.start())
    async with Client(store=store, app=app) as client:
        assert await client.run(double, 4) == 8
    await worker.stop()
    assert store.heard_topics == []
    assert asyncio.all_tasks() == before


async def test_a_worker_that_was_stopped_refuses_to_start_again() -> None:
    """Its runs would be claimed, and nothing of them recorded."""
    store = MemoryStore()
    worker = Worker(app, store)
    await worker.start()
    await worker.stop()
    with pytest.raises(ConfigurationError, match="make another Worker"):
        await worker.start()
    assert await _workers(store) == []


async def test_a_start_that_failed_can_be_made_again() -> None:
    tries: list[int] = []

    class Store(MemoryStore):
        async def now(self) -> int:
            tries.append(1)
            if len(tries) == 1:
                raise ConnectionError("away")
            return await super().now()

    store = Store()
    worker = Worker(app, store)
    with pytest.raises(ConnectionError):
        await worker.start()
    await worker.stop()
    await worker.start()
    async with Client(store=store, app=app) as client:
        assert await client.run(double, 4) == 8
    await worker.stop()


async def test_a_start_that_is_cut_off_leaves_nothing() -> None:
    """At whatever moment: after so many turns of the event loop."""
    for turns in itertools.count(1):
        store = AnswersLater()
        worker = Worker(app, store)
        before = asyncio.all_tasks()
        starting = asyncio.create_task(worker.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        if starting.done():
            await worker.stop(grace=0)
            break
        starting.cancel()
        await asyncio.wait([starting])
        await worker.stop(grace=0)
        assert (await _workers(store), store.heard_topics) == ([], [])
        assert asyncio.all_tasks() == before
