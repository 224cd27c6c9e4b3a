"""The tests of a store share an event loop, and so the sessions of their databases."""

from collections.abc import AsyncIterator

import pytest
from contract.actors import ManualWorker
from scene import Scene
from tests.sessions import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from tests.sessions import runs_share_the_loop as runs_share_the_loop


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url) as scene:
        yield scene


@pytest.fixture
def ann(scene: Scene) -> ManualWorker:
    return ManualWorker(scene.store, "ann")


@pytest.fixture
def bob(scene: Scene) -> ManualWorker:
    return ManualWorker(scene.store, "bob")
