"""Processes of the crash suite that publish, and that do what events start.

`python -m tests.crash.publishing publish URL` writes rows and publishes, each in one transaction;
`… work URL` is a worker. Both say when they are ready, and run until they are killed.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

import asyncpg

from holdfast import App, Client, Context
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker, WorkerOptions

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
    options = WorkerOptions(lease_seconds=1.5, heartbeat_seconds=0.3, maintenance_seconds=0.3)
    # Only a worker with a heartbeat takes over what a killed one held.
    worker = Worker(app, store, options, heartbeat_store=partial(PostgresStore, url, connections=1))
    await worker.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run({"publish": publish, "work": work}[sys.argv[1]](sys.argv[2]))
