"""A worker and a client in one program: the shortest way to durable runs in a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from holdfast.client import Client
from holdfast.database.keeping import kept_running
from holdfast.database.migrate import prepare_schema
from holdfast.database.resolve import Connecting, Database, Source, resolve_database
from holdfast.definitions.app import App
from holdfast.errors import HoldfastError
from holdfast.store.opening import make_store, opened_store, thread_store
from holdfast.store.port import Store
from holdfast.tracing import worker_tracer
from holdfast.values.durations import Duration
from holdfast.values.loggers import get_logger
from holdfast.values.waits import in_own_thread, require_asyncio, to_the_end
from holdfast.worker import Worker, WorkerOptions
from holdfast.worker.shard import SHARD_CONNECTIONS, Shard, is_served, until_served

logger = get_logger("holdfast.worker")


@asynccontextmanager
async def local(
    app: App,
    database: str | None = None,
    *,
    data: Path | str | None = None,
    schema: str = "holdfast",
    options: WorkerOptions | None = None,
    grace: Duration = "10s",
    prepare: bool | None = None,
    listen_database: str | None = None,
) -> AsyncGenerator[Client]:
    """Run a worker for `app` in this process while the block lasts, and give a client.

    The database is `database`, else `$HOLDFAST_DATABASE_URL`, else `$DATABASE_URL`, else the
    embedded one with its data under `data`. An embedded one is migrated here, any other one by
    `holdfast migrate`. Of several databases, separated by spaces, each has a worker; that of one
    which is away or spare begins when it is there. `prepare` and `listen_database` are those of
    `Client`. A program that is killed and started again continues its runs.

    ```python
    async with local(app) as client:
        print(await client.run(summarise, "folder", key="folder"))
    ```

    Raises what `Client.open` raises if the database cannot be used.
    """
    require_asyncio()
    found = await asyncio.to_thread(
        resolve_database,
        database,
        None if data is None else Path(data),
        connecting=Connecting(prepare, listen_database),
    )
    try:
        if found.source is Source.EMBEDDED:
            await prepare_schema(found.url, schema)
        async with (
            kept_running(found),
            opened_store(found, schema) as store,
            Client(store=store, app=app) as client,
            AsyncExitStack() as workers,
        ):
            for each in found.parts:
                working = _working(app, each, _shard(found, each, schema), schema, options, grace)
                await workers.enter_async_context(working)
            yield client
    finally:
        await in_own_thread(found.close)  # the last one out waits until the server has stopped


def _shard(named: Database, one: Database, schema: str) -> Shard | None:
    """Return which of several databases one of them is; None for a database alone."""
    if one.number is None:
        return None
    return Shard(one.number, make_store(named, schema, SHARD_CONNECTIONS))


@asynccontextmanager
async def _working(
    app: App,
    database: Database,
    shard: Shard | None,
    schema: str,
    options: WorkerOptions | None,
    grace: Duration,
) -> AsyncGenerator[None]:
    store = make_store(database, schema)
    worker = Worker(
        app,
        store,
        options,
        heartbeat_store=partial(thread_store, database, schema),
        tracer=worker_tracer(app.name),
        shard=shard,
    )
    later: asyncio.Task[None] | None = None
    try:
        if shard is None or await is_served(store):
            await worker.start()
        else:
            later = asyncio.create_task(_start_later(worker, store, shard.number))
        yield
    finally:
        await to_the_end(_stop(worker, store, grace, later), worker.end_grace)


async def _stop(
    worker: Worker, store: Store, grace: Duration, later: asyncio.Task[None] | None
) -> None:
    if later is not None:
        later.cancel()
        await asyncio.wait({later})
    try:
        await worker.stop(grace)
    finally:
        await store.close()


async def _start_later(worker: Worker, store: Store, number: int) -> None:
    try:
        await until_served(store, number, worker.declare)
        await worker.start()
    except HoldfastError:
        logger.exception("the worker of shard %d does not start", number)
