"""Processes of the crash suite that publish, and that do what events start.

`python -m tests.crash.publishing publish URL` writes rows and publishes, each in one transaction;
`… work URL` is a worker. Both say when they are ready, and run until they are killed.
"""

from __future__ import annotations

import asyncio
import sys

import asyncpg

from holdfast import App, Client, Context
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker

app = App("outbox")


@app.step
async def note(order: int) -> int:
    return order


@app.workflow
async def ship(ctx: Context, order: int) -> int:
    return await note(order)


app.subscribe("orders.placed", ship)


async def publish(url: str) -> None:
    """Write and publish, without end."""
    connection = await asyncpg.connect(url)
    async with Client(url) as client:
        print("ready", flush=True)
        while True:
            async with connection.transaction():
                order = await connection.fetchval("insert into orders default values returning id")
                await client.topics.publish("orders.placed", order, connection=connection)


async def work(url: str) -> None:
    """Run what events start, and deliver them, without end."""
    store = PostgresStore(url)
    await store.open()
    worker = Worker(app, store)
    await worker.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run({"publish": publish, "work": work}[sys.argv[1]](sys.argv[2]))
