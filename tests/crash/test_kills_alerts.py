"""Workers killed while they look at an alert: each change is one event all the same."""

from __future__ import annotations

import asyncio
import json
import os
import random
from functools import partial
from multiprocessing.context import ForkServerProcess

import asyncpg
import pytest

from holdfast import App, Context
from holdfast.client import Client
from holdfast.database.embedded import EmbeddedServer
from holdfast.definitions import backlog
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker, WorkerOptions
from tests.crash.processes import processes

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

CHANGES = 8
PATIENCE_SECONDS = 90
LOOK_NOW = "update holdfast.alerts set look_at = now()"
ACTIVE = "select is_active from holdfast.alerts"
LOOKED = "select looked_at from holdfast.alerts"


def shop() -> App:
    app = App("shop")

    @app.workflow
    async def checkout(ctx: Context) -> None: ...

    app.alert("work waits", when=backlog("far", older_than="1ms"), topic="ops")
    return app


def look(url: str) -> None:
    """Work until killed."""

    async def run() -> None:
        options = WorkerOptions(queues=("default",), heartbeat_seconds=0.1)
        worker = Worker(
            shop(), PostgresStore(url), options, heartbeat_store=partial(PostgresStore, url)
        )
        await worker.start()
        await asyncio.Event().wait()

    asyncio.run(run())


def started(url: str) -> ForkServerProcess:
    process = processes.Process(target=look, args=(url,), daemon=True)
    process.start()
    return process


async def test_killed_workers_tell_of_each_change_once(server: EmbeddedServer) -> None:
    choose = random.Random(7)
    connection = await asyncpg.connect(server.url)
    workers = [started(server.url) for _ in range(3)]
    try:
        async with Client(server.url, app=shop()) as client:
            await client.queues.create("heard")
            await client.topics.subscribe("ops", queue="heard")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await connection.fetchval(ACTIVE) is None:
                    await asyncio.sleep(0.05)
            for change in range(CHANGES):
                if change % 2 == 0:
                    run = await client.start("checkout", queue="far")  # which nobody serves
                else:
                    await client.runs.terminate(run.run_id)
                seconds = 0.02  # longer each time: on a busy machine a worker takes long to look
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while await connection.fetchval(ACTIVE) is not (change % 2 == 0):
                        await connection.execute(LOOK_NOW)  # all wake, and look at once
                        seconds += choose.uniform(0, 0.1)
                        await asyncio.sleep(seconds)
                        killed = workers.pop(0)
                        assert killed.pid is not None
                        os.kill(killed.pid, 9)
                        killed.join()
                        workers.append(started(server.url))
            for _ in range(2):  # what would be told twice is told by the next looks
                since = await connection.fetchval(f"{LOOK_NOW} returning now()")
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while await connection.fetchval(LOOKED) < since:
                        await asyncio.sleep(0.05)
            bodies = await connection.fetch("select payload from holdfast.messages")
    finally:
        await connection.close()
        for worker in workers:
            worker.kill()
            worker.join()
    told = sorted((json.loads(each[0]) for each in bodies), key=lambda event: event["at"])
    assert [event["active"] for event in told] == [True, False] * (CHANGES // 2)
