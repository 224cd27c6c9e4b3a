"""`store` is each store in turn; a worker and a client use it in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import Client
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from tests.sessions import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide an open, empty store."""
    if request.param == "memory":
        opened: Store = MemoryStore()
    else:
        opened = PostgresStore(request.getfixturevalue("database_url"), tells=True)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def memory_store() -> MemoryStore:
    """Provide a store in memory, for what has nothing to do with PostgreSQL."""
    return MemoryStore()


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    """Provide a client that knows no app."""
    async with Client(store=store) as client:
        yield client
