"""`store` is each store in turn; `clock` moves its time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store

from .actors import Clock, ManualWorker, MemoryClock


@pytest.fixture(params=["memory"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Store, Clock]]:
    """Provide an open, empty store and its clock."""
    store = MemoryStore()
    await store.open()
    yield store, MemoryClock(store)
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
