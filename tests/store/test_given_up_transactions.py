"""Transactions whose commit is under way when the code of their run gives them up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
from scene import Scene
from test_transactions import ONCE, hotel, insert, results, rooms, working
from tests.proxy import Proxy

from holdfast import App, ChildFailed, Client, Context, Database
from holdfast.store.port.transactions import AlreadyRecorded
from holdfast.store.postgres import PostgresStore, asyncpg_connector, connectors
from holdfast.types import Event
from holdfast.worker import Worker, WorkerOptions, cancelling


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        await scene.watcher.connection.execute("create table public.rooms (room int)")
        yield scene
        await scene.watcher.connection.execute("drop table public.rooms")
        await scene.watcher.connection.execute("drop schema if exists apart cascade")


class Losing:
    """Loses the first commit with the way to its database, to carry it out later."""

    def __init__(self, proxy: Proxy, patch: pytest.MonkeyPatch, *kinds: type) -> None:
        self.lost, self._proxy = asyncio.Event(), proxy
        self._loop = asyncio.get_running_loop()
        self._kept: tuple[UUID, Event, int] | None = None
        for kind in kinds:
            patch.setattr(kind, "keep", self._noting(kind.keep))  # type: ignore[attr-defined]
            patch.setattr(kind, "finish", self._losing(kind.finish))  # type: ignore[attr-defined]

    def _noting(self, keep: Any) -> Any:
        async def note(session: Any, run_id: UUID, event: Event, number: int) -> None:
            await keep(session, run_id, event, number)
            if self._kept is None:
                self._kept = run_id, event, number

        return note

    def _losing(self, finish: Any) -> Any:
        async def lose(session: Any) -> None:
            if self._kept is None or self.lost.is_set():
                await finish(session)
                return
            self._proxy.refuse()
            self._proxy.cut()
            self._loop.call_soon_threadsafe(self.lost.set)
            raise ConnectionResetError("the answer is lost")

        return lose

    async def arrive(self, scene: Scene) -> None:
        """Carry out what was sent before."""
        kept = self._kept
        assert kept is not None
        connector = scene.store.connector("asyncpg", asyncpg.Connection, 1, (scene.url, "apart"))

        async def commit(transaction: Any) -> None:
            await transaction.connection.execute("insert into public.rooms values (4)")
            await transaction.keep(*kept)

        try:
            await connector.within(commit, None)
        finally:
            await connector.close()


async def start_worker(stack: AsyncExitStack, app: App, url: str) -> Worker:
    store = PostgresStore(url, tells=True)
    stack.push_async_callback(store.close)
    worker = Worker(app, store, WorkerOptions(poll_seconds=0.1))
    await worker.start()
    stack.push_async_callback(worker.stop, 0)
    return worker


async def with_asyncpg(connection: asyncpg.Connection, room: int) -> int:
    return await insert(connection, room)


def with_psycopg(connection: psycopg.Connection, room: int) -> int:
    connection.execute("insert into public.rooms values (%s)", [room])
    return room


@pytest.mark.parametrize("stops", [False, True], ids=["stays", "stops"])
@pytest.mark.parametrize("kind", [with_asyncpg, with_psycopg])
async def test_code_that_undoes_begins_when_a_commit_without_an_answer_is_known(
    scene: Scene, kind: Any, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: it found nothing to undo, and the commit arrived after it had looked.

    A worker that stops keeps the run for its grace period.
    """
    monkeypatch.setattr(cancelling, "_GRACE_SECONDS", 0.1)
    await results(scene)
    with Proxy(scene.url) as proxy:
        losing = Losing(proxy, monkeypatch, asyncpg_connector.AsyncpgSession, connectors._Psycopg)
        app, looked = App("hotel"), asyncio.Event()
        place = Database(proxy.url, schema="apart")
        book = app.transaction(database=place, retry=ONCE)(kind)

        @app.step
        async def look() -> list[int]:
            looked.set()
            return await rooms(scene)

        @app.workflow
        async def stay(ctx: Context) -> list[int]:
            booking = asyncio.create_task(book(4))
            await ctx.wait_for_signal("stop")
            booking.cancel()
            return await look()

        async with AsyncExitStack() as stack, Client(scene.url, app=app) as client:
            worker = await start_worker(stack, app, scene.url)
            handle = await client.start(stay)
            await losing.lost.wait()
            await handle.signal("stop")
            await asyncio.sleep(0.3)
            stopping = asyncio.create_task(worker.stop(30)) if stops else None
            if stops:
                await start_worker(stack, app, scene.url)
            with suppress(TimeoutError):
                await asyncio.wait_for(looked.wait(), 1.5)
            assert not looked.is_set()
            proxy.refuse(False)
            assert await handle.result() == []
            if stopping is not None:
                await stopping
            with pytest.raises(AlreadyRecorded):
                await losing.arrive(scene)
    assert await rooms(scene) == []


@pytest.mark.parametrize(
    "way", ["signal", "sleep", "activity", "child", "later activity", "later end"]
)
async def test_nothing_begins_before_a_commit_without_an_answer_is_known(
    scene: Scene, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: only a step waited that followed at once, not what followed a suspension."""
    monkeypatch.setattr(cancelling, "_GRACE_SECONDS", 0.1)
    await results(scene)
    with Proxy(scene.url) as proxy:
        losing = Losing(proxy, monkeypatch, asyncpg_connector.AsyncpgSession)
        app, looked = App("hotel"), asyncio.Event()
        place = Database(proxy.url, schema="apart")
        book = app.transaction(database=place, retry=ONCE)(with_asyncpg)

        async def look() -> list[int]:
            looked.set()
            return await rooms(scene)

        step, activity = app.step(look), app.activity(name="looking")(look)

        @app.workflow
        async def looks(ctx: Context) -> list[int]:
            return await step()

        @app.workflow
        async def books(ctx: Context) -> None:
            async with asyncio.timeout(0.5):
                await book(4)

        @app.workflow
        async def stay(ctx: Context) -> list[int]:
            if way.startswith("later"):  # the cancel and what follows have one cause
                with suppress(TimeoutError, ChildFailed):
                    if way == "later end":
                        await ctx.child(books)
                    else:
                        async with asyncio.timeout(0.5):
                            await book(4)
            else:
                booking = asyncio.create_task(book(4))
                await ctx.wait_for_signal("stop")
                booking.cancel()
            if way == "signal":
                await ctx.wait_for_signal("undo")
            elif way == "sleep":
                await ctx.sleep("1s")
            elif way == "child":
                return await ctx.child(looks)
            return await (activity() if way.endswith("activity") else step())

        async with AsyncExitStack() as stack, Client(scene.url, app=app) as client:
            await start_worker(stack, app, scene.url)
            handle = await client.start(stay)
            await losing.lost.wait()
            if not way.startswith("later"):
                await handle.signal("stop")
                await asyncio.sleep(0.3)
                await handle.signal("undo")
            with suppress(TimeoutError):
                await asyncio.wait_for(looked.wait(), 2)
            assert not looked.is_set()
            proxy.refuse(False)
            assert await handle.result() == []
            with pytest.raises(AlreadyRecorded):
                await losing.arrive(scene)
    assert await rooms(scene) == []


@pytest.mark.parametrize(
    "refusal", [asyncpg.TooManyConnectionsError, asyncpg.ReadOnlySQLTransactionError]
)
async def test_what_came_of_a_commit_is_asked_for_until_the_server_takes_the_question(
    scene: Scene, refusal: type[asyncpg.PostgresError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the step failed, although its rows and its result were there."""
    session, refused = asyncpg_connector.AsyncpgSession, list[None]()
    finish, give_up = session.finish, session.give_up

    async def lose(lost: Any) -> None:
        await finish(lost)
        lost._raw.terminate()
        raise ConnectionResetError("the answer is lost")

    async def refuse(*given: Any) -> str | None:
        if len(refused) < 2:
            refused.append(None)
            raise refusal("not now")
        monkeypatch.setattr(session, "finish", finish)
        return await give_up(*given)

    monkeypatch.setattr(session, "finish", lose)
    monkeypatch.setattr(session, "give_up", refuse)
    app, stay = hotel(insert, retry=ONCE, database=await results(scene))
    async with working(app, scene.url) as client:
        assert await client.run(stay, 4) == 4
    assert (len(refused), await rooms(scene)) == (2, [4])
