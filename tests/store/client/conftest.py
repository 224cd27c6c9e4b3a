"""`client` is open on each store in turn; `finisher` ends runs in that store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from tests.shards.spread import spread

from holdfast.client import Client
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore

from .workflows import Finisher


@pytest.fixture(
    params=["shards"] if os.environ.get("HOLDFAST_TEST_SHARDS") else ["memory", "postgres"]
)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide an open, empty store."""
    if request.param == "shards":
        opened: Store = spread()
    elif request.param == "memory":
        opened = MemoryStore()
    else:
        opened = PostgresStore(request.getfixturevalue("database_url"))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def client(store: Store) -> AsyncIterator[Client]:
    """Provide a client that knows no app."""
    async with Client(store=store) as client:
        yield client


@pytest.fixture
def finisher(store: Store) -> Finisher:
    """Provide a worker that does what the test says."""
    return Finisher(store)
