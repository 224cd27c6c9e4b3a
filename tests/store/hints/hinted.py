"""Workers and clients with Redis, and runs whose steps must be executed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import psycopg
from redis.asyncio import Redis
from tests.valkey import Valkey

from holdfast import App, Client, Context
from holdfast.database.resolve import Connecting, resolve_database
from holdfast.definitions.workflows import Workflow
from holdfast.store.opening import make_store
from holdfast.store.port import Store
from holdfast.worker import Worker, WorkerOptions

RUNS = 40
app = App("hinted")
other = App("other")


@app.step
async def double(n: int) -> int:
    return 2 * n


@app.workflow
async def calculate(ctx: Context, n: int) -> int:
    return await double(n)


@app.activity
async def double_elsewhere(n: int) -> int:
    return 2 * n


@app.workflow
async def delegate(ctx: Context, n: int) -> int:
    return await double_elsewhere(n)


Job: TypeAlias = Workflow[int, int]
ENDS = {calculate: "StepCompleted", delegate: "ActivityCompleted"}


@other.workflow
async def rest(ctx: Context, n: int) -> int:
    return n


def store_on(database_url: str, redis_url: str) -> Store:
    return make_store(
        resolve_database(database_url, connecting=Connecting(redis_url=redis_url)), "holdfast"
    )


@asynccontextmanager
async def working(
    database_url: str,
    redis_url: str,
    count: int = 3,
    *,
    served: App = app,
    poll_seconds: float = 0.3,
    concurrency: int = 100,
) -> AsyncGenerator[list[Worker]]:
    """Run workers on stores of their own."""
    stores = [store_on(database_url, redis_url) for _ in range(count)]
    workers = [
        Worker(
            served,
            store,
            WorkerOptions(poll_seconds=poll_seconds, concurrency=concurrency),
            heartbeat_store=lambda: store_on(database_url, redis_url),
        )
        for store in stores
    ]
    try:
        for worker in workers:
            await worker.start()
        yield workers
    finally:
        for worker in workers:
            await worker.stop(1)
        for store in stores:
            await store.close()


@asynccontextmanager
async def client_of(database_url: str, redis_url: str) -> AsyncGenerator[Client]:
    async with asyncio.timeout(120), Client(database_url, redis=redis_url, app=app) as client:
        yield client


def assert_each_once(database_url: str, runs: int, job: Job = calculate) -> None:
    """Every run ended, and no step or activity was executed twice."""
    with psycopg.connect(database_url) as connection:
        for event in (ENDS[job], "WorkflowCompleted"):
            found = connection.execute(
                "select count(*) from holdfast.events where event_type = %s", (event,)
            ).fetchone()
            assert found == (runs,), event
        lost = "select count(*) from holdfast.events where event_type = 'WorkerLost'"
        assert connection.execute(lost).fetchone() == (0,)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def until_reading(redis: Valkey, count: int) -> None:
    """Wait until so many workers wait for hints."""
    async with asyncio.timeout(60), Redis.from_url(redis.url) as link:
        while (await link.info("clients"))["blocked_clients"] < count:
            await asyncio.sleep(0.01)


async def streams_of(link: Redis, kind: str = "*") -> list[bytes]:
    return [key async for key in link.scan_iter(f"holdfast:*:tasks:{kind}:*")]


async def run_all(
    client: Client, trouble: Callable[[int], object] = lambda _: None, *, job: Job = calculate
) -> None:
    """Start runs one after another, with trouble between them, and await them all."""
    handles = []
    for n in range(RUNS):
        trouble(n)
        handles.append(await client.start(job, n))
    results = [await handle.result() for handle in handles]
    assert results == [2 * n for n in range(RUNS)]
