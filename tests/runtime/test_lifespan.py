"""What a worker opens once for its steps and activities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import App, Context, Retry, RunFailed
from holdfast.errors import ConfigurationError, DatabaseUnavailable
from holdfast.store.memory import MemoryStore, wall_clock
from holdfast.testing import Environment
from holdfast.types import Heartbeat
from holdfast.worker import Worker
from holdfast.worker.resources import Resources
from tests.runtime.desk import Desk, working


def shop(history: list[str]) -> App:
    """Define an app with two lifespans, the second made of the first."""
    app = App("shop")

    @app.lifespan
    async def database() -> AsyncIterator[str]:
        history.append("open database")
        async with asyncio.TaskGroup():  # belongs to the task that enters it
            yield "db"
        history.append("close database")

    @app.lifespan
    @asynccontextmanager
    async def orders() -> AsyncIterator[list[str]]:
        history.append("open orders")
        yield [database.get()]
        history.append("close orders")

    @app.step
    async def look() -> list[str]:
        return orders.get()

    @app.step
    def look_in_thread() -> str:
        return database.get()

    @app.activity
    def look_elsewhere() -> str:
        return database.get()

    @app.workflow
    async def shopping(ctx: Context) -> list[object]:
        return [await look(), await look_in_thread()]

    @app.workflow
    async def careless(ctx: Context) -> str:
        return database.get()

    return app


async def test_lifespans_open_in_order_and_close_in_reverse() -> None:
    history: list[str] = []
    app = shop(history)
    async with Environment(app) as env:
        assert history == ["open database", "open orders"]
        handle = await env.client.start("shopping")
        assert await env.result(handle) == [["db"], "db"]
    assert history == ["open database", "open orders", "close orders", "close database"]


async def test_activities_find_what_their_worker_has_opened() -> None:
    app, store = shop([]), MemoryStore(wall_clock)
    desk = await Desk(store, app.name).open()
    async with working(app, store):
        await desk.order("look_elsewhere")
        assert await desk.result("look_elsewhere") == "db"


async def test_workflow_code_is_refused_what_the_worker_has_opened() -> None:
    """Trap 17. It replays, perhaps on another worker."""
    app = shop([])
    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="move the call to a step") as caught:
            await env.result(await env.client.start("careless"))
        assert caught.value.matches(ConfigurationError)


async def test_a_worker_whose_lifespan_fails_does_not_start() -> None:
    """What was opened before is closed, and nobody has heard of the worker."""
    history: list[str] = []
    app, store = shop(history), MemoryStore()

    @app.lifespan
    async def broken() -> AsyncIterator[None]:
        raise ConnectionRefusedError("nobody listens")
        yield

    place = r"\(.*test_lifespan\.py:\d+\)"
    with pytest.raises(ConfigurationError, match=rf"broken {place} cannot be opened.*nobody"):
        await Worker(app, store).start()
    assert history == ["open database", "open orders", "close orders", "close database"]
    assert await store.list_workers() == []


def test_a_lifespan_that_does_not_yield_is_refused_at_its_definition() -> None:
    async def pool() -> int:
        return 1

    with pytest.raises(ConfigurationError, match="lifespan pool does not yield"):
        App("shop").lifespan(pool)  # type: ignore[arg-type]


async def test_a_worker_that_could_not_sign_on_opens_its_lifespans_again() -> None:
    class Unreachable(MemoryStore):
        times = 1

        async def heartbeat(self, *args: Any, **kwargs: Any) -> Heartbeat:
            if self.times:
                self.times -= 1
                raise DatabaseUnavailable("not yet")
            return await super().heartbeat(*args, **kwargs)

    history: list[str] = []
    app, store = shop(history), Unreachable(wall_clock)
    desk, worker = await Desk(store, app.name).open(), Worker(app, store)
    with pytest.raises(DatabaseUnavailable):
        await worker.start()
    assert history[-1] == "close database"
    await worker.start()
    await desk.order("look_elsewhere")
    assert await desk.result("look_elsewhere") == "db"
    assert history[-1] == "open orders"
    await worker.stop(0)


async def test_a_start_that_is_cancelled_closes_what_is_open() -> None:
    history: list[str] = []
    app, reached = shop(history), asyncio.Event()

    @app.lifespan
    async def slow() -> AsyncIterator[None]:
        reached.set()
        await asyncio.Event().wait()
        yield

    starting = asyncio.create_task(Worker(app, MemoryStore()).start())
    await reached.wait()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert history == ["open database", "open orders", "close orders", "close database"]


async def test_a_lifespan_that_fails_to_close_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    history: list[str] = []
    app = shop(history)

    @app.lifespan
    async def fragile() -> AsyncIterator[None]:
        yield
        raise OSError("already gone")

    async with Environment(app):
        pass
    assert history[-2:] == ["close orders", "close database"]
    assert "fragile failed to close" in caplog.text


async def test_a_lifespan_that_awaits_what_it_has_cancelled_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    history: list[str] = []
    app = shop(history)

    @app.lifespan
    async def polls() -> AsyncIterator[None]:
        task = asyncio.create_task(asyncio.Event().wait())
        yield
        task.cancel()
        await task

    async with Environment(app):
        pass
    assert history[-2:] == ["close orders", "close database"]
    assert "polls failed to close" in caplog.text


async def test_lifespans_that_never_close_hold_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them is cancelled, and the others are closed."""
    monkeypatch.setattr("holdfast.worker.resources._CLOSE_SECONDS", 0.0)
    history: list[str] = []
    app = shop(history)
    for _ in range(2):

        @app.lifespan
        async def endless() -> AsyncIterator[None]:
            yield
            await asyncio.Event().wait()

    resources = Resources(app.registry.lifespans)
    await resources.start()
    resources.end_grace()
    async with asyncio.timeout(60):
        await resources.stop()
    assert history[-2:] == ["close orders", "close database"]
    assert caplog.text.count("endless failed to close") == 2


async def test_a_lifespan_has_its_own_time_to_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not cancelled because those that closed before it took most of the time."""
    app, history = App("shop"), list[str]()
    waited, begun, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.lifespan
    async def first() -> AsyncIterator[None]:
        yield
        begun.set()
        await gate.wait()
        history.append("close first")

    @app.lifespan
    async def second() -> AsyncIterator[None]:
        yield
        await waited.wait()

    wait = asyncio.wait

    async def wait_for_first(tasks: Any, *, timeout: float | None = None, **more: Any) -> Any:
        if timeout is None:
            return await wait(tasks, **more)
        if not begun.is_set():  # the time is over just after the first began to close
            waited.set()
            await begun.wait()
        else:
            gate.set()
            await wait(tasks)
        return set(), tasks

    resources = Resources(app.registry.lifespans)
    await resources.start()
    resources.end_grace()
    monkeypatch.setattr("holdfast.worker.resources.asyncio.wait", wait_for_first)
    async with asyncio.timeout(60):
        await resources.stop()
    assert history == ["close first"]
    assert "failed to close" not in caplog.text


async def test_lifespans_close_after_the_drain() -> None:
    """S12."""
    history: list[str] = []
    app = shop(history)
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.activity
    async def last() -> None:
        begun.set()
        await gate.wait()
        history.append("last activity")

    store = MemoryStore(wall_clock)
    desk = await Desk(store, app.name).open()
    worker = Worker(app, store)
    await worker.start()
    await desk.order("last")
    await begun.wait()
    stopping = asyncio.create_task(worker.stop("30s"))
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert history[2:] == ["last activity", "close orders", "close database"]


@pytest.mark.parametrize("kind", ["step", "activity"])
async def test_what_is_stopped_by_the_drain_cleans_up_before_lifespans_close(kind: str) -> None:
    """S12. Trap 26. With the resource that it has been using."""
    history: list[str] = []
    app, begun = shop(history), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            history.append("clean up")

    call = app.activity(work) if kind == "activity" else app.step(work)

    @app.workflow
    async def working_hard(ctx: Context) -> None:
        await call()

    async with Environment(app) as env:
        await env.client.start(working_hard)
        await begun.wait()
    assert history[2:] == ["clean up", "close orders", "close database"]


async def test_a_test_replaces_a_lifespan() -> None:
    app = App("shop")

    @app.lifespan
    async def database() -> AsyncIterator[str]:
        raise AssertionError("it must not be opened")
        yield

    @app.step(retry=Retry.NEVER)
    def look() -> str:
        return database.get()

    @app.workflow
    async def shopping(ctx: Context) -> str:
        return await look()

    with database.override("fake"):
        assert await look() == "fake"
        async with Environment(app) as env:
            assert await env.run(shopping) == "fake"
    with pytest.raises(ConfigurationError, match=r"with database\.override"):
        await look()
