"""Workers killed while they look at an alert: each change is one event all the same."""

from __future__ import annotations

import asyncio
import json
import os
import random
from multiprocessing.context import ForkServerProcess

import pytest
from psycopg.rows import TupleRow

from holdfast import App, Context
from holdfast.client import Client
from holdfast.database.embedded import EmbeddedServer
from holdfast.database.urls import split_urls
from holdfast.definitions import backlog
from holdfast.worker import WorkerOptions
from tests.crash.ledger import query_all
from tests.crash.processes import processes
from tests.crash.worker import work_on

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

CHANGES = 8
PATIENCE_SECONDS = 90
LOOK_NOW = "update holdfast.alerts set look_at = now() returning now()"
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
        _ = await work_on(shop(), url, options)
        await asyncio.Event().wait()

    asyncio.run(run())


def started(url: str) -> ForkServerProcess:
    process = processes.Process(target=look, args=(url,), daemon=True)
    process.start()
    return process


def look_now(server: EmbeddedServer) -> list[TupleRow]:
    """Let the alerts of all databases be due; return when that was."""
    return query_all(server, LOOK_NOW)


async def test_killed_workers_tell_of_each_change_once(server: EmbeddedServer) -> None:
    choose = random.Random(7)
    workers = [started(server.url) for _ in range(3)]
    try:
        async with Client(server.url, app=shop()) as client:
            await client.queues.create("heard")
            await client.topics.subscribe("ops", queue="heard")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(query_all(server, ACTIVE)) < len(split_urls(server.url)):
                    await asyncio.sleep(0.05)
            for change in range(CHANGES):
                if change % 2 == 0:
                    run = await client.start("checkout", queue="far")  # which nobody serves
                else:
                    await client.runs.terminate(run.run_id)
                seconds = 0.02  # longer each time: on a busy machine a worker takes long to look
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while ((True,) in query_all(server, ACTIVE)) is not (change % 2 == 0):
                        look_now(server)  # all wake, and look at once
                        seconds += choose.uniform(0, 0.1)
                        await asyncio.sleep(seconds)
                        killed = workers.pop(0)
                        assert killed.pid is not None
                        os.kill(killed.pid, 9)
                        killed.join()
                        workers.append(started(server.url))
            for _ in range(2):  # what would be told twice is told by the next looks
                [(since,), *_] = look_now(server)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while min(looked for (looked,) in query_all(server, LOOKED)) < since:
                        await asyncio.sleep(0.05)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while query_all(server, "select from holdfast.forwards"):
                    await asyncio.sleep(0.05)
            bodies = query_all(server, "select payload::text from holdfast.messages")
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    told = sorted((json.loads(each[0]) for each in bodies), key=lambda event: event["at"])
    assert [event["active"] for event in told] == [True, False] * (CHANGES // 2)
