"""Processes of the crash suite that publish, and that do what events start.

`publish` writes rows and publishes, each in one transaction; `work` is a worker. Both say when they
are ready, and run until they are killed.
"""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

import asyncpg

from holdfast import App, Client, Context
from holdfast.database.urls import split_urls
from holdfast.worker import WorkerOptions
from tests.crash.worker import signed, work_on

app = App("outbox")


@app.step
async def note(order: int) -> int:
    return order


@app.workflow
async def ship(ctx: Context, order: int) -> int:
    return await note(order)


app.subscribe("orders.placed", ship)


async def publish(url: str, ready: Connection) -> None:
    """Write and publish, without end."""
    connection = await asyncpg.connect(split_urls(url)[0])
    async with Client(url) as client:
        ready.send(True)
        while True:
            async with connection.transaction():
                order = await connection.fetchval("insert into orders default values returning id")
                await client.topics.publish("orders.placed", order, connection=connection)


async def work(url: str, ready: Connection) -> None:
    """Run what events start, and deliver them, without end."""
    options = WorkerOptions(lease_seconds=1.5, heartbeat_seconds=0.3, maintenance_seconds=0.3)
    _ = await work_on(app, url, options)
    ready.send(True)
    await asyncio.Event().wait()


def run(url: str, ready: Connection, *, publishes: bool) -> None:
    """Publish or work until killed."""
    url = signed(url)
    asyncio.run(publish(url, ready) if publishes else work(url, ready))
