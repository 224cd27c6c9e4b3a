"""`client` is open on each store in turn; `finisher` ends runs in that store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest
from tests.databases import DatabaseServer
from tests.shards.spread import spread, spread_over

from holdfast.client import Client
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore

from .flow_scene import FlowScene
from .workflows import Finisher

SHARDS = int(os.environ.get("HOLDFAST_TEST_SHARDS", "0"))


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide an open, empty store; with HOLDFAST_TEST_SHARDS=4, one over four databases."""
    with ExitStack() as stack:
        if request.param == "memory":
            opened: Store = spread(SHARDS) if SHARDS else MemoryStore()
        elif SHARDS:
            server: DatabaseServer = request.getfixturevalue("database_server")
            urls = [stack.enter_context(server.database()) for _ in range(SHARDS)]
            opened = spread_over([PostgresStore(url) for url in urls])
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


@pytest.fixture
def scene(store: Store) -> FlowScene:
    return FlowScene(store)
