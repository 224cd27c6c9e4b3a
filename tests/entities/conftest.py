"""`store` is each store in turn; `client` calls entities whose worker is in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import Client
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.clock import wall_clock
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker
from tests.entities.carts import app
from tests.sessions import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide an open, empty store."""
    if request.param == "memory":
        opened: Store = MemoryStore(wall_clock)
    else:
        opened = PostgresStore(request.getfixturevalue("database_url"), tells=True)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def worker(store: Store) -> AsyncIterator[Worker]:
    """Provide a worker that runs."""
    worker = Worker(app, store)
    await worker.start()
    yield worker
    await worker.stop(0)


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    """Provide a client that knows no app."""
    async with Client(store=store) as client:
        yield client
