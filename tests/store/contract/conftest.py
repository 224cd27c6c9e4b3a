"""`store` is each store in turn; `clock` moves its time.

The databases have no schema `holdfast`, so that each test of the suite shows as well that the
engine works in a schema of another name. The other tests of the store use that of its own.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio
from clocks import INSTALL, Clock, Clocks, MemoryClock, PostgresClock, ThoroughStore
from tests.databases import DatabaseServer
from tests.shards.spread import spread, spread_over

from holdfast.database.embedded import EmbeddedServer
from holdfast.database.scripts import in_schema
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store

from .actors import ManualWorker
from .flow_actors import Flows, FlowsStore, StepWorker

SHARDS = int(os.environ.get("HOLDFAST_TEST_SHARDS", "0"))
"""With HOLDFAST_TEST_SHARDS=4 each store is one over four databases."""


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Let the tests of a module share a runner of the loop, and so connections that stay open."""
    if isinstance(collector, pytest.Module):
        collector.add_marker(pytest.mark.asyncio(loop_scope="module"))


class Kept:
    """A store on a database that stays open for the next test of a module.

    A new connection is costly: it has to plan every function first.
    """

    def __init__(self, url: str, schema: str) -> None:
        self._url, self._schema = url, schema
        self._stack = AsyncExitStack()
        self._clock: PostgresClock | None = None
        self._store: ThoroughStore | None = None

    async def empty(self) -> tuple[ThoroughStore, PostgresClock]:
        """Return a store without anything in it, at the first moment of its clock."""
        if self._clock is None:
            clock = PostgresClock.install(self._url, schema=self._schema, is_there=True)
            self._clock = await self._stack.enter_async_context(clock)
        else:
            await self._clock.reset()
        if self._store is None:
            self._store = ThoroughStore(self._url, schema=self._schema)
            await self._store.open()
        return self._store, self._clock

    async def look_after(self) -> None:
        """Close what a test has closed itself, or has listened with."""
        if self._store is not None and not self._store.is_as_new:
            await self._store.close()
            self._store = None

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()
        await self._stack.aclose()


@pytest.fixture(scope="session")
def clocked(
    embedded_server: EmbeddedServer, server_homes: Path, worker_id: str
) -> Iterator[DatabaseServer]:
    """The shared server, with databases of another schema, in which time stands still."""
    schema, shared = "elsewhere", server_homes / "clocked.template"
    install = in_schema(INSTALL, schema)
    server = DatabaseServer(embedded_server.url, worker_id, schema, also=install, shared=shared)
    yield server
    server.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept(clocked: DatabaseServer) -> AsyncIterator[list[Kept]]:
    with ExitStack() as stack:
        urls = [stack.enter_context(clocked.database()) for _ in range(SHARDS or 1)]
        kept = [Kept(url, clocked.schema) for url in urls]
        yield kept
        for each in kept:
            await each.close()


@pytest_asyncio.fixture(params=["memory", "postgres"], loop_scope="module")
async def stage(
    request: pytest.FixtureRequest, kept: list[Kept]
) -> AsyncIterator[tuple[Store, Clock]]:
    """Provide an open, empty store and its clock; see SHARDS."""
    if request.param == "memory":
        memory = spread(SHARDS) if SHARDS else MemoryStore()
        await memory.open()
        yield memory, MemoryClock(cast("MemoryStore", memory))
        await memory.close()
    else:
        stages = [await each.empty() for each in kept]
        if SHARDS:
            spread_store = spread_over([store for store, _ in stages])
            await spread_store.open()
            yield spread_store, Clocks([clock for _, clock in stages])
        else:
            yield stages[0]
        for each in kept:
            await each.look_after()


@pytest.fixture
def store(stage: tuple[Store, Clock]) -> Store:
    """Return the store under test."""
    return stage[0]


@pytest.fixture
def clock(stage: tuple[Store, Clock]) -> Clock:
    """Return what moves the store's time."""
    return stage[1]


@pytest.fixture
def ann(store: Store) -> ManualWorker:
    """Return a worker that does what the test says."""
    return ManualWorker(store, "ann")


@pytest.fixture
def bob(store: Store) -> ManualWorker:
    """Return another worker."""
    return ManualWorker(store, "bob")


@pytest.fixture
def flows(store: Store, clock: Clock) -> Flows:
    """Return who defines, starts and looks at flows."""
    return Flows(cast("FlowsStore", store), clock)


@pytest.fixture
def worker(flows: Flows) -> StepWorker:
    """Return a worker that executes steps."""
    return StepWorker(flows.store, "ann")


@pytest.fixture
def other(flows: Flows) -> StepWorker:
    """Return another one."""
    return StepWorker(flows.store, "bob")
