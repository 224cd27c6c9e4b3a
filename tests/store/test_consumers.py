"""Consumers on PostgreSQL: what the heartbeat keeps, and what failures leave in the database."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import asyncpg
import pytest
from tests.runtime.desk import eventually

from holdfast import App, current_message
from holdfast.client import Client
from holdfast.errors import PayloadError
from holdfast.store.postgres import PostgresStore
from holdfast.types import Receipt
from holdfast.worker import Worker, WorkerOptions, consumer_loop, message_calls

OPTIONS = WorkerOptions(heartbeat_seconds=0.05, lease_seconds=30.0)
IN_FLIGHT = "select queue_id, delivery_id, visible_at from holdfast.deliveries"


@asynccontextmanager
async def working(app: App, url: str, options: WorkerOptions = OPTIONS) -> AsyncIterator[Worker]:
    """Run a worker with a heartbeat."""
    store = PostgresStore(url)
    worker = Worker(app, store, options, heartbeat_store=partial(PostgresStore, url))
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(grace=0)
        await store.close()


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Provide a connection that looks at what is in flight."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
def kept_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker's time for keeping messages pass fast: what lasts a minute is kept after 0.2 s.

    In the database it lasts as long as it says, so a slow machine does not outlast it.
    """
    begun = time.monotonic()
    fast = SimpleNamespace(monotonic=lambda: begun + 100 * (time.monotonic() - begun))
    for module in (consumer_loop, message_calls):
        monkeypatch.setattr(module, "time", fast)


@pytest.mark.usefixtures("kept_soon")
async def test_heartbeat_keeps_the_messages_of_a_slow_call_and_acks_them_once(
    database_url: str, connection: asyncpg.Connection[asyncpg.Record]
) -> None:
    """B13. The call blocks its thread; its messages stay in flight until it returns."""
    app, go_on, attempts = App("shop"), threading.Event(), list[int]()

    @app.consumer("orders", visibility="1m")
    def book(number: int) -> None:
        attempts.append(current_message().attempt)
        go_on.wait(60)

    async with Client(database_url) as client, working(app, database_url):
        await client.queues.create("orders")
        await client.queues.send("orders", 1)
        await eventually(lambda: bool(attempts))
        assert await connection.fetchval("select consumes from holdfast.workers") == ["orders"]
        [first] = await connection.fetch(IN_FLIGHT)

        async def is_kept_twice() -> bool:
            [now] = await connection.fetch(IN_FLIGHT)
            return bool((now["visible_at"] - first["visible_at"]).total_seconds() > 0.5)

        await eventually(is_kept_twice)
        go_on.set()

        async def is_acked() -> bool:
            return not await connection.fetch(IN_FLIGHT)

        await eventually(is_acked)
        assert await client.queues.receive("orders") == []
        assert attempts == [1]


@pytest.mark.usefixtures("kept_soon")
async def test_call_whose_messages_are_lost_is_cancelled(
    database_url: str, connection: asyncpg.Connection[asyncpg.Record]
) -> None:
    """B13. Others have the messages by then; the end of the call changes nothing."""
    app, attempts, cancelled = App("shop"), list[int](), list[int]()

    @app.consumer("orders", visibility="1m", concurrency=1)
    async def book(number: int) -> None:
        attempt = current_message().attempt
        attempts.append(attempt)
        try:
            await asyncio.sleep(3600 if attempt == 1 else 0)
        except asyncio.CancelledError:
            cancelled.append(attempt)
            raise

    async with Client(database_url) as client, working(app, database_url):
        await client.queues.create("orders")
        await client.queues.send("orders", 1)
        await eventually(lambda: attempts == [1])
        [held] = await connection.fetch(IN_FLIGHT)
        await client.queues.nack(Receipt(held["queue_id"], held["delivery_id"]))
        await eventually(lambda: cancelled == [1])
        await eventually(lambda: attempts == [1, 2])


class Mute(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass
class Order:
    """A message whose code refuses some values with an error of its own."""

    number: int

    def __post_init__(self) -> None:
        if self.number == 13:
            raise KeyError("13")


async def test_failure_that_cannot_be_stored_as_it_is_does_not_stop_the_consumer(
    database_url: str,
) -> None:
    """B13. Such messages become dead letters, those that come after them are consumed."""
    errors = {1: ValueError("a NUL \0"), 2: ValueError("a surrogate \ud800"), 3: Mute()}
    app, seen = App("shop"), list[int]()

    @app.consumer("orders")
    async def book(order: Order) -> None:
        if order.number in errors:
            raise errors[order.number]
        seen.append(order.number)

    async with Client(database_url) as client, working(app, database_url):
        await client.queues.create("orders", max_receives=1)
        await client.queues.create("others")
        for number in (1, 2, 3, 13):
            await client.queues.send("orders", {"number": number})

        async def are_dead() -> bool:
            return len(await client.queues.messages("orders.dead")) == 4

        await eventually(are_dead)
        await client.queues.send("orders", Order(4))
        await eventually(lambda: seen == [4])
        assert {each.error for each in await client.queues.messages("orders.dead")} == {
            "ValueError: a NUL ",
            "ValueError: a surrogate \\ud800",
            "Mute: (no message: str() raised RuntimeError)",
            "InvalidInput: book(order): KeyError: '13'",
        }
        await client.queues.send("others", 1)
        [message] = await client.queues.receive("others", visibility="1h")
        assert await client.queues.nack(message, error="a NUL \0 and a surrogate \ud800") == [True]
        [message] = await client.queues.receive("others")
        assert message.error == "a NUL  and a surrogate \\ud800"


async def test_message_stays_in_flight_for_three_heartbeats_however_short_its_visibility(
    database_url: str, connection: asyncpg.Connection[asyncpg.Record]
) -> None:
    """B13. Otherwise others would have it before the heartbeat can keep it."""
    app, begun, go_on = App("shop"), asyncio.Event(), asyncio.Event()

    @app.consumer("orders", visibility="10ms")
    async def book(number: int) -> None:
        begun.set()
        await go_on.wait()

    async with Client(database_url) as client:
        await client.queues.create("orders", fifo=True)
        await client.queues.send("orders", 1, group="a")
        async with working(app, database_url, WorkerOptions(heartbeat_seconds=2.0)):
            async with asyncio.timeout(60):
                await begun.wait()
            [held] = await connection.fetch(
                "select visible_at - received_at from holdfast.deliveries"
            )
            go_on.set()
    assert held[0].total_seconds() >= 6


async def test_worker_stops_whatever_the_ends_of_its_messages_meet(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13. An error of the last calls of a consumer leaves the rest of the farewell whole."""
    app, begun = App("shop"), asyncio.Event()

    @app.consumer("orders")
    async def book(number: int) -> None:
        begun.set()
        await asyncio.sleep(3600)

    async def refuse(*_: object) -> object:
        raise PayloadError("no")

    async with Client(database_url) as client:
        await client.queues.create("orders")
        await client.queues.send("orders", 1)
        async with working(app, database_url):
            async with asyncio.timeout(60):
                await begun.wait()
            monkeypatch.setattr(PostgresStore, "return_messages", refuse)
        assert await client.workers.list() == []


@pytest.mark.usefixtures("kept_soon")
async def test_new_visibility_of_a_queue_reaches_messages_that_a_consumer_holds_and_receives(
    database_url: str,
    connection: asyncpg.Connection[asyncpg.Record],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B13. The heartbeat takes it on for a call that runs, and a receive for what comes next."""
    monkeypatch.setattr(consumer_loop, "_KNOWN_SECONDS", 0)
    app, began, go_on = App("shop"), list[int](), threading.Semaphore(0)
    lasts = "select extract(epoch from visible_at - received_at)::int from holdfast.deliveries"

    @app.consumer("orders", concurrency=1)
    def book(number: int) -> None:
        began.append(number)
        go_on.acquire(timeout=60)

    async with Client(database_url) as client, working(app, database_url):
        await client.queues.create("orders", visibility="1m")
        await client.queues.send("orders", 1)
        await eventually(lambda: began == [1])
        await client.queues.update("orders", visibility="1h")

        async def is_kept_for_long() -> bool:
            return bool(await connection.fetchval(lasts) >= 3600)

        await eventually(is_kept_for_long)
        await client.queues.update("orders", visibility="3h")
        await client.queues.send("orders", 2)
        go_on.release()
        await eventually(lambda: began == [1, 2])
        assert await connection.fetchval(lasts) == 3 * 3600
        go_on.release()
