"""Engines of three databases, on PostgreSQL and in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import TypeAlias

import pytest

from holdfast import App, Client
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import wall_clock
from holdfast.store.port import Store
from holdfast.store.shards import sharded
from tests.databases import DatabaseServer
from tests.entities import carts
from tests.sessions import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from tests.sessions import runs_share_the_loop as runs_share_the_loop
from tests.shards.engine import Workers, engine_of, opened

COUNT = 3

Make: TypeAlias = Callable[[App], AbstractAsyncContextManager[Workers]]


@pytest.fixture
def urls(database_server: DatabaseServer) -> Iterator[list[str]]:
    """Databases that are alone."""
    with ExitStack() as stack:
        yield [stack.enter_context(database_server.database()) for _ in range(COUNT)]


@pytest.fixture(params=["memory", "postgres"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[list[Store]]:
    """Provide open stores of the shards of an engine."""
    if request.param == "memory":
        found: list[Store] = [MemoryStore(wall_clock) for _ in range(COUNT)]
    else:
        found = opened(request.getfixturevalue("urls"))
    async with engine_of(found):
        yield found


@pytest.fixture
async def store(request: pytest.FixtureRequest, stores: list[Store]) -> AsyncIterator[Store]:
    """Provide the store of clients."""
    is_memory = isinstance(stores[0], MemoryStore)
    found = sharded(stores if is_memory else opened(request.getfixturevalue("urls")))
    await found.open()
    yield found
    await found.close()


@pytest.fixture
def make_workers(request: pytest.FixtureRequest, stores: list[Store]) -> Make:
    """Return what makes workers of an app, one a shard, for the length of a block."""
    is_memory = isinstance(stores[0], MemoryStore)
    urls = () if is_memory else request.getfixturevalue("urls")

    @asynccontextmanager
    async def make(app: App) -> AsyncIterator[Workers]:
        workers = Workers(app, stores, urls)
        await workers.start()
        try:
            yield workers
        finally:
            await workers.stop()

    return make


@pytest.fixture
async def worker(make_workers: Make) -> AsyncIterator[Workers]:
    """Provide workers of the carts."""
    async with make_workers(carts.app) as workers:
        yield workers


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    """Provide a client that knows no app."""
    async with Client(store=store) as client:
        yield client


@pytest.fixture(params=["memory", "postgres"])
async def alone(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide a store that is not a shard."""
    if request.param == "memory":
        found: Store = MemoryStore(wall_clock)
    else:
        [found] = opened([request.getfixturevalue("database_url")])
    await found.open()
    yield found
    await found.close()
