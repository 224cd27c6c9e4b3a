"""A worker and a client in one program: the shortest way from a script to durable runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.client import Client
from holdfast.definitions.app import App
from holdfast.durations import Duration
from holdfast.store.database import Source, connect, resolve_database
from holdfast.store.migrate import migrate
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker, WorkerOptions


@asynccontextmanager
async def local(
    app: App,
    database: str | None = None,
    *,
    data: Path | None = None,
    schema: str = "holdfast",
    options: WorkerOptions | None = None,
    grace: Duration = "10s",
) -> AsyncGenerator[Client, None]:
    """Run a worker for `app` in this process while the block lasts, and give a client.

    The database is found as everywhere (`database`, $HOLDFAST_DATABASE_URL, $DATABASE_URL,
    embedded with its data under `data`); an embedded one is migrated, others are left to
    `holdfast migrate`. A program that is killed and started again goes on with its runs.

    ```python
    async with local(app) as client:
        print(await client.run(summarise, "folder", key="folder"))
    ```

    Raises what `Client.open` raises where the database cannot be used.
    """
    with await asyncio.to_thread(resolve_database, database, data) as found:
        if found.source is Source.EMBEDDED:
            connection = await connect(found.url)
            try:
                await migrate(connection, schema)
            finally:
                await connection.close()
        store = PostgresStore(found.url, schema=schema)
        worker = Worker(
            app,
            store,
            options,
            heartbeat_store=lambda: PostgresStore(found.url, schema=schema, connections=1),
        )
        async with Client(found.url, schema=schema, app=app) as client:
            try:
                await worker.start()
                yield client
            finally:
                await worker.stop(grace)
                await store.close()
