"""What middleware makes of transactions that have committed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest
from scene import Scene
from test_transactions import hotel, insert, results, rooms, working

from holdfast.definitions.middleware import CallNext, Middleware
from holdfast.definitions.steps import StepContext


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        await scene.watcher.connection.execute("create table public.rooms (room int)")
        yield scene
        await scene.watcher.connection.execute("drop table public.rooms")
        await scene.watcher.connection.execute("drop schema if exists apart cascade")


async def with_asyncpg(connection: asyncpg.Connection, room: int) -> int:
    return await insert(connection, room)


def with_psycopg(connection: psycopg.Connection, room: int) -> int:
    connection.execute("insert into public.rooms values (%s)", [room])
    return room


class After(Middleware):
    """Does something with what a transaction has returned, once it is committed."""

    def __init__(self, raises: bool) -> None:
        self.raises, self.calls = raises, 0

    async def step(self, context: StepContext, call_next: CallNext) -> object:
        self.calls += 1
        result = await call_next()
        if self.raises:
            raise OSError("the log file is full")
        assert isinstance(result, int)
        return result + 100


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("way", ["log", "strict", "elsewhere", "in a thread", "thread elsewhere"])
async def test_what_is_committed_stands_whatever_middleware_makes_of_it(
    scene: Scene, way: str, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault: with a table of results it depended on the middleware if the step had failed."""
    options: dict[str, Any] = {"isolation": "serializable"} if way == "strict" else {}
    if "elsewhere" in way:
        options["database"] = await results(scene)
    app, stay = hotel(with_psycopg if "thread" in way else with_asyncpg, **options)
    after = After(raises)
    app.add_middleware(after)
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 4
    assert (after.calls, await rooms(scene)) == (1, [4])
    assert ("its middleware failed: OSError('the log file is full')" in caplog.text) == raises
