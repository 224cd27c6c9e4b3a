"""Wake-ups through PostgreSQL: lost connections come back by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from scene import Scene
from tests.databases import DatabaseServer
from tests.proxy import Proxy

from holdfast.database.connection import open_connection
from holdfast.database.urls import Target
from holdfast.store.postgres import PostgresStore, listening
from holdfast.types import Notice

LISTENING = """
    from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()
        and (query ilike 'listen%' or query = 'select 1')
"""


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        yield scene


class Heard:
    """The payloads that a listener was called with, in order."""

    def __init__(self) -> None:
        self._payloads: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, payload: str) -> None:
        self._payloads.put_nowait(payload)

    @property
    def nothing(self) -> bool:
        """Whether nothing waits to be read."""
        return self._payloads.empty()

    async def next(self) -> str:
        """Return the next payload."""
        async with asyncio.timeout(60):
            return await self._payloads.get()


async def until_back(heard: Heard) -> None:
    """Wait until a listener is called with nothing, whatever it heard before."""
    while await heard.next() != "":
        pass


async def cut(scene: Scene) -> None:
    """End the listening connection from the server's side."""
    await scene.until(f"select count(*) {LISTENING}", lambda count: count == 1)
    assert await scene.value(f"select pg_terminate_backend(pid) {LISTENING}")


async def test_listener_comes_back_after_a_lost_connection(scene: Scene) -> None:
    """Trap 22. It is called with nothing, because wake-ups may have been missed."""
    work, own = Heard(), Heard()
    await scene.store.listen("work", work)
    await scene.store.listen("worker/ann", own)
    for number in range(3):
        await cut(scene)
        assert (await work.next(), await own.next()) == ("", "")
        await scene.store.notify([Notice("work", f"queue-{number}"), Notice("worker/ann", "run")])
        assert (await work.next(), await own.next()) == (f"queue-{number}", "run")


async def test_listener_whose_connection_fell_mute_comes_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reset, no end: only a question that is not answered tells."""

    async def open_impatiently(target: Target, **_: object) -> asyncpg.Connection[Any]:
        return await open_connection(target, call_seconds=0.5)

    monkeypatch.setattr(listening, "_ASK_SECONDS", 0.1)
    monkeypatch.setattr(listening, "open_connection", open_impatiently)
    with Proxy(scene.url) as proxy:
        store = PostgresStore(scene.url, listen_url=proxy.url)
        await store.open()
        work = Heard()
        await store.listen("work", work)
        for number in range(2):
            proxy.mute()
            await until_back(work)
            await store.notify([Notice("work", f"queue-{number}")])
            while (heard := await work.next()) == "":  # a busy machine is like a mute one
                await store.notify([Notice("work", f"queue-{number}")])
            assert heard == f"queue-{number}"
        await store.close()


async def test_listening_that_is_not_possible_now_is_said_and_begins_when_it_is(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Those who listen look by themselves meanwhile."""
    with Proxy(scene.url) as proxy:
        proxy.refuse()
        store = PostgresStore(scene.url, listen_url=proxy.url)
        await store.open()
        work = Heard()
        await store.listen("work", work)
        assert "cannot listen, so work is found by polling" in caplog.text
        proxy.refuse(False)
        assert await work.next() == ""
        await store.notify([Notice("work", "queue")])
        assert await work.next() == "queue"
        await store.close()


async def test_an_address_that_leads_to_another_database_is_noticed(
    scene: Scene,
    database_server: DatabaseServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing would ever be heard there."""
    monkeypatch.setattr(listening, "_ANSWER_SECONDS", 0.3)
    with database_server.database() as elsewhere:
        store = PostgresStore(scene.url, listen_url=elsewhere)
        await store.open()
        await store.listen("work", Heard())
        assert "no notification arrives" in caplog.text
        await store.close()


async def test_listener_added_while_the_connection_is_away_is_served(scene: Scene) -> None:
    work, late = Heard(), Heard()
    await scene.store.listen("work", work)
    await cut(scene)
    await scene.store.listen("client/1", late)
    assert await work.next() == ""
    await scene.store.notify([Notice("client/1", "run")])
    heard = await late.next()
    assert (heard or await late.next()) == "run"


async def test_one_connection_serves_all_topics(scene: Scene) -> None:
    heard = {f"client/{number}": Heard() for number in range(5)}
    for topic, callback in heard.items():
        await scene.store.listen(topic, callback)
    assert await scene.value(f"select count(*) {LISTENING}") == 1
    await scene.store.notify([Notice(topic, topic.upper()) for topic in heard])
    assert [await callback.next() for callback in heard.values()] == [t.upper() for t in heard]


async def test_stopped_listener_hears_no_more(scene: Scene) -> None:
    first, second, other = Heard(), Heard(), Heard()
    stop = await scene.store.listen("work", first)
    await scene.store.listen("work", second)
    await scene.store.listen("other", other)
    await stop()
    await stop()
    await scene.store.notify([Notice("work", "default"), Notice("other", "sentinel")])
    assert (await second.next(), await other.next()) == ("default", "sentinel")
    assert first.nothing


async def test_topic_too_long_for_a_channel_is_heard(scene: Scene) -> None:
    """A channel's name has 63 bytes; a worker's id may have more."""
    heard, topic = Heard(), "worker/" + "ä" * 80
    await scene.store.listen(topic, heard)
    await scene.store.notify([Notice(topic, "run")])
    assert await heard.next() == "run"


async def test_schemas_of_one_database_do_not_hear_each_other(scene: Scene) -> None:
    other: Any = PostgresStore(scene.url, schema="elsewhere", check=False)
    here, there = Heard(), Heard()
    await scene.store.listen("work", here)
    await other.listen("work", there)
    await scene.store.notify([Notice("work", "default")])
    assert await here.next() == "default"
    await scene.value("select pg_notify('elsewhere:work', 'sentinel')")
    assert await there.next() == "sentinel"
    assert there.nothing
    await other.close()


async def test_a_listener_whose_caller_is_cancelled_is_not_called(scene: Scene) -> None:
    """It could not be stopped: nobody got what stops it."""
    left, heard = Heard(), Heard()
    asking = asyncio.create_task(scene.store.listen("work", left))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await scene.store.listen("work", heard)
    await scene.store.notify([Notice("work", "default")])
    while await heard.next() != "default":
        pass
    assert left.nothing
