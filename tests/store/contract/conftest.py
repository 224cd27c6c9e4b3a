"""`store` is each store in turn; `clock` moves its time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest
from clocks import Clock, MemoryClock, PostgresClock, ThoroughStore

from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store

from .actors import ManualWorker
from .flow_actors import Flows, FlowsStore, StepWorker


@pytest.fixture(params=["memory", "postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Store, Clock]]:
    """Provide an open, empty store and its clock."""
    if request.param == "memory":
        memory = MemoryStore()
        yield memory, MemoryClock(memory)
        await memory.close()
        return
    url = request.getfixturevalue("module_database_url")
    async with PostgresClock.install(url) as clock:
        store = ThoroughStore(url)
        await store.open()
        yield store, clock
        await store.close()


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
