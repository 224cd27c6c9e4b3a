"""Finding workers at work: those that the database shows to hold a lease."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from multiprocessing.context import ForkServerProcess

import psycopg
from psycopg.rows import TupleRow

from holdfast.client.handle import RunHandle
from holdfast.database.embedded import EmbeddedServer
from holdfast.database.urls import split_urls
from tests.crash.fleet import Fleet
from tests.crash.ledger import home_of, query_all
from tests.crash.worker import session_name

Connection = psycopg.AsyncConnection[TupleRow]


async def stop_at_work(
    fleet: Fleet,
    server: EmbeddedServer,
    choose: random.Random,
    start: Callable[[], Awaitable[RunHandle[object]]],
    busy: RunHandle[object] | None = None,
) -> ForkServerProcess:
    """Stop a worker while it holds a lease, and return it: it holds that until it continues.

    `start` starts a run that keeps a worker busy, unless `busy` is one that does. It is called
    again if that run has ended before a worker was found.
    """
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        all_ = [await stack.enter_async_context(each) for each in await _connect_all(server)]
        busy = busy or await start()
        while True:
            at_work = await _holders(all_, fleet)
            if at_work:
                worker = choose.choice(at_work)
                fleet.freeze(worker)
                await _until_silent(all_[0], worker)
                if worker in await _holders(all_, fleet):
                    return worker
                fleet.thaw(worker)
            elif not await _is_open(all_, busy):
                busy = await start()
            await asyncio.sleep(0.01)


async def until_held(server: EmbeddedServer, run: RunHandle[object]) -> None:
    """Wait until a worker holds the turn of a run."""
    query = "select from holdfast.tasks where run_id = %s and key = '' and worker is not null"
    async with asyncio.timeout(120):
        while not await asyncio.to_thread(query_all, server, query, [run.run_id]):
            await asyncio.sleep(0.01)


async def until_gone(server: EmbeddedServer, worker: ForkServerProcess) -> None:
    """Wait until the database has carried out what a killed process has sent."""
    assert worker.pid is not None
    query = "select from pg_stat_activity where application_name = %s"
    connect = psycopg.AsyncConnection.connect(home_of(server), autocommit=True)
    async with asyncio.timeout(120), await connect as connection:
        while (await connection.execute(query, [session_name(worker.pid)])).rowcount:
            await asyncio.sleep(0.01)


async def _connect_all(server: EmbeddedServer) -> list[Connection]:
    """Connect to each of its databases."""
    connect = psycopg.AsyncConnection.connect
    return [await connect(url, autocommit=True) for url in split_urls(server.url)]


async def _holders(all_: Sequence[Connection], fleet: Fleet) -> list[ForkServerProcess]:
    """Return the workers of a fleet that hold leases."""
    query = (
        "select distinct w.pid from holdfast.tasks t "
        "join holdfast.workers w on w.worker_id = t.worker where t.visible_at > holdfast.now()"
    )
    rows = [row for each in all_ for row in await (await each.execute(query)).fetchall()]
    pids = {pid for (pid,) in rows}
    return [worker for worker in fleet.workers if worker.pid in pids]


async def _until_silent(connection: Connection, worker: ForkServerProcess) -> None:
    """Wait until the database has carried out what a stopped worker has sent."""
    assert worker.pid is not None
    query = (
        "select from pg_stat_activity where application_name = %s and state = 'active' "
        "and wait_event is distinct from 'ClientRead'"  # it was sent half a statement
    )
    while (await connection.execute(query, [session_name(worker.pid)])).rowcount:
        await asyncio.sleep(0.01)


async def _is_open(all_: Sequence[Connection], run: RunHandle[object]) -> bool:
    query = "select from holdfast.runs where run_id = %s and status = 'running'"
    return any([(await each.execute(query, [run.run_id])).rowcount for each in all_])
