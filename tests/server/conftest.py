"""A server in this process, on each store in turn."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import httpx
import pytest

from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker
from tests.server.shop import HOST, KEY, Api, app
from tests.sessions import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide an open, empty store."""
    if request.param == "memory":
        opened: Store = MemoryStore(clock=lambda: time.time_ns() // 1000)
    else:
        opened = PostgresStore(request.getfixturevalue("database_url"))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def server(store: Store) -> AsyncIterator[Server]:
    """Provide a server on the store, which knows the app."""
    async with Server(store=store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as opened:
        yield opened


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """Provide a client that has the key."""
    headers = {"Authorization": f"Bearer {KEY}"}
    transport = httpx.ASGITransport(server)
    async with httpx.AsyncClient(
        transport=transport, base_url=f"http://{HOST}", headers=headers
    ) as client:
        yield client


@pytest.fixture
def api(http: httpx.AsyncClient) -> Api:
    """Provide a caller of the API."""
    return Api(http)


@pytest.fixture
async def worker(store: Store) -> AsyncIterator[Worker]:
    """Provide a worker of the app."""
    worker = Worker(app, store)
    await worker.start()
    yield worker
    await worker.stop(grace=0)
