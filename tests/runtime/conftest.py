"""`store` is each store in turn. Every turn that a test drives by hand is closed after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from tests.runtime.bench import Bench
from tests.sessions import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories


@pytest.fixture(autouse=True)
def close_turns() -> Iterator[None]:
    """Close them: what the collector closed would run on whichever loop runs then."""
    yield
    while Bench.made:
        Bench.made.pop().abandon()


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Provide each store, on real time; that of PostgreSQL has the module's database."""
    if request.param == "memory":
        yield MemoryStore(wall_clock)
        return
    postgres = PostgresStore(request.getfixturevalue("module_database_url"))
    await postgres.open()
    yield postgres
    await postgres.close()
