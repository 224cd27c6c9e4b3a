"""What the heartbeat does for messages in flight, on PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import asyncpg
import pytest
from tests.runtime.desk import eventually

from holdfast import App, current_message
from holdfast.client import Client
from holdfast.store.postgres import PostgresStore
from holdfast.types import Receipt
from holdfast.worker import Worker, WorkerOptions

OPTIONS = WorkerOptions(heartbeat_seconds=0.05, lease_seconds=30.0)
IN_FLIGHT = "select queue_id, delivery_id, visible_at from holdfast.deliveries"


@asynccontextmanager
async def working(app: App, url: str) -> AsyncIterator[Worker]:
    """Run a worker with a heartbeat."""
    store = PostgresStore(url)
    worker = Worker(app, store, OPTIONS, heartbeat_store=partial(PostgresStore, url))
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


async def test_heartbeat_keeps_the_messages_of_a_slow_call_and_acks_them_once(
    database_url: str, connection: asyncpg.Connection[asyncpg.Record]
) -> None:
    """B13. The call blocks its thread; its messages stay in flight until it returns."""
    app, go_on, attempts = App("shop"), threading.Event(), list[int]()

    @app.consumer("orders", visibility="600ms")
    def book(number: int) -> None:
        attempts.append(current_message().attempt)
        go_on.wait(60)

    async with Client(database_url) as client, working(app, database_url):
        await client.queues.create("orders")
        await client.queues.send("orders", 1)
        await eventually(lambda: bool(attempts))
        [first] = await connection.fetch(IN_FLIGHT)

        async def is_kept_twice() -> bool:
            [now] = await connection.fetch(IN_FLIGHT)
            return bool((now["visible_at"] - first["visible_at"]).total_seconds() > 0.4)

        await eventually(is_kept_twice)
        go_on.set()

        async def is_acked() -> bool:
            return not await connection.fetch(IN_FLIGHT)

        await eventually(is_acked)
        assert await client.queues.receive("orders") == []


async def test_call_whose_messages_are_lost_is_cancelled(
    database_url: str, connection: asyncpg.Connection[asyncpg.Record]
) -> None:
    """B13. Others have the messages by then; the end of the call changes nothing."""
    app, attempts, cancelled = App("shop"), list[int](), list[int]()

    @app.consumer("orders", visibility="300ms", concurrency=1)
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
