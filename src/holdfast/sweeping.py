"""Doing what is due within a limited time, in a program that no worker runs beside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

from holdfast.database.connection import connected
from holdfast.database.migrate import migrate
from holdfast.database.resolve import Connecting, Database, Source, resolve_database
from holdfast.definitions.app import App
from holdfast.errors import ConfigurationError
from holdfast.store.opening import make_store, thread_store
from holdfast.values.durations import Duration
from holdfast.values.waits import in_own_thread
from holdfast.worker import Sweep, SweepLimits, SweepResult, WorkerOptions
from holdfast.worker.watchdog import Process

_CONNECTIONS = 2  # for calls; the heartbeat and the listener have one each


class SweepOptions(TypedDict, total=False):
    """The options of `sweep` and `sweep_sync`."""

    max_runs: int | None
    max_duration: Duration
    grace: Duration | None
    data: Path | str | None
    schema: str
    options: WorkerOptions | None
    prepare: bool | None
    listen_database: str | None


async def sweep(
    app: App, database: str | None = None, **options: Unpack[SweepOptions]
) -> SweepResult:
    """Do what is due in the database for `app`, and return what was done and what remains.

    It claims runs, activities and steps of flows as a worker does, drives them until they end or
    wait, calls consumers with messages, delivers events to URLs, fires timers and does the
    maintenance. It returns when nothing is due, or when a limit is reached. Then it has no lease,
    no connection and no row in the database any more. Any number of sweeps and workers may work at
    the same time.

    `max_duration` limits the whole call, `"1m"` by default: give it a little less than the host
    gives you. The last part of it is for the end: for the `grace` period, a fifth by default and at
    most 10 s, nothing new is started and running steps may end. What runs on is interrupted: its
    run gets the entry WorkflowTaskYielded, and the step begins again in the next sweep. `max_runs`
    limits how many different runs it takes, which include those of its activities.

    The database is `database`, else `$HOLDFAST_DATABASE_URL`, else `$DATABASE_URL`, else the
    embedded one with its data under `data`. `prepare` and `listen_database` are those of `Client`.

    ```python
    done = await sweep(app, max_duration="50s")
    if done.remaining:
        print("call again at once")
    ```

    Raises ConfigurationError for limits that leave no time, and what `Client.open` raises if the
    database cannot be used.
    """
    limits = SweepLimits.read(
        options.get("max_runs"), options.get("max_duration", "1m"), options.get("grace")
    )
    data, schema = options.get("data"), options.get("schema", "holdfast")
    found = await asyncio.to_thread(
        resolve_database,
        database,
        None if data is None else Path(data),
        connecting=Connecting(options.get("prepare"), options.get("listen_database")),
    )
    try:
        if found.source is Source.EMBEDDED:
            async with connected(found.url) as connection:
                await migrate(connection, schema)
        async with opened_sweep(app, found, schema, limits, options.get("options")) as begun:
            return await begun.run()
    finally:
        await in_own_thread(found.close)


def sweep_sync(
    app: App, database: str | None = None, **options: Unpack[SweepOptions]
) -> SweepResult:
    """Do as `sweep` does, from code without asyncio.

    Raises ConfigurationError in a thread that runs an event loop: there, await `sweep`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # and not in here: it would be told as the cause of each error of a run
    else:
        raise ConfigurationError("an event loop runs in this thread: await holdfast.sweep(…) there")
    return asyncio.run(sweep(app, database, **options))


@asynccontextmanager
async def opened_sweep(
    app: App,
    database: Database,
    schema: str,
    limits: SweepLimits,
    options: WorkerOptions | None = None,
    origin: str | None = None,
    process: Process | None = None,
) -> AsyncGenerator[Sweep]:
    """Make a sweep on a database; its store is closed at the end of the block.

    `process` lets it end the process if code blocks the event loop when its time is over. Raises
    ConfigurationError for several databases.
    """
    if database.shards:
        raise ConfigurationError(
            f"a sweep is for one database, and {len(database.shards)} are named: run "
            "`holdfast worker` for them"
        )
    store = make_store(database, schema, _CONNECTIONS)
    try:
        yield Sweep(
            app,
            store,
            limits,
            options,
            heartbeat_store=partial(thread_store, database, schema),
            origin=origin,
            process=process,
        )
    finally:
        await store.close()
