"""The pool: connections that the server, a firewall or a fail-over has ended cost no call."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest
from contract.actors import start
from scene import Scene
from tests.ports import refusing_port
from tests.proxy import Proxy

from holdfast.database import connection
from holdfast.database.connection import open_connection
from holdfast.database.urls import read_url
from holdfast.errors import DatabaseUnavailable
from holdfast.store.postgres import PostgresStore, database

OTHERS = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url, connections=4) as scene:
        yield scene


def is_none(count: int) -> bool:
    return count == 0


async def use_all(store: PostgresStore, count: int = 4) -> None:
    """Have as many connections open as the pool takes."""
    await asyncio.gather(*(store.now() for _ in range(count)))


async def end_idle(scene: Scene) -> None:
    """End every connection but the watcher's from the server's side, and see them gone here."""
    await scene.value(f"select count(pg_terminate_backend(pid)) {OTHERS}")
    await scene.until(f"select count(*) {OTHERS}", is_none)


async def test_idle_connections_that_the_server_ended_fail_no_call(scene: Scene) -> None:
    for _ in range(3):
        await use_all(scene.store)
        await end_idle(scene)
        assert await scene.store.find_run("order", str(uuid4())) is None
        await use_all(scene.store)


async def test_a_store_whose_connections_were_ended_closes_without_an_error(scene: Scene) -> None:
    store = PostgresStore(scene.url)
    await store.open()
    await use_all(store)
    await end_idle(scene)
    await store.close()


async def test_a_server_that_ends_idle_sessions_fails_no_call(scene: Scene) -> None:
    store = PostgresStore(f"{scene.url}&application_name=short")
    await store.open()
    for _ in range(3):
        await use_all(store)
        for link, _ in store._database._open_pool()._idle:  # not before: it may be slow
            await link.execute("set idle_session_timeout = 1")
        await scene.until(f"select count(*) {OTHERS} and application_name = 'short'", is_none)
        await use_all(store)
    await store.close()


def ended_while_idle() -> Exception:
    """Return what the driver raises for a call that meets such an end of its session."""
    said = {"S": "FATAL", "V": "FATAL", "C": "57P05", "M": "idle-session timeout"}
    error = asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
    error.__cause__ = asyncpg.PostgresError.new(said)
    return error


@pytest.mark.parametrize(
    "failure",
    [
        asyncpg.InternalClientError("cannot switch to state 12"),
        asyncpg.InternalClientError("connection is closed"),
        ended_while_idle(),
    ],
)
async def test_a_call_that_was_not_sent_is_repeated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Or that met the end, which may have been read before the connection knew itself closed."""
    fetchrow = asyncpg.Connection.fetchrow
    failures = [failure]

    async def fail_once(self: object, *arguments: object, **options: object) -> object:
        if failures:
            raise failures.pop()
        return await fetchrow(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncpg.Connection, "fetchrow", fail_once)
    assert await scene.store.now() > 0
    assert not failures


async def test_connections_that_fell_mute_while_idle_fail_no_call(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were idle for long are asked first, and the call takes another."""
    monkeypatch.setattr(connection, "_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(database, "_TRUSTED_SECONDS", 0.0)
    monkeypatch.setattr(database, "_ANSWER_SECONDS", 0.2)
    with Proxy(database_url) as proxy:
        store = PostgresStore(proxy.url)
        await store.open()
        await use_all(store)
        proxy.mute()
        async with asyncio.timeout(30):
            await use_all(store)
            await store.close()


async def test_a_call_over_a_mute_connection_has_the_others_asked(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call pays for the silence, not one for each connection of the pool."""
    monkeypatch.setattr(connection, "_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(database, "_ANSWER_SECONDS", 0.2)
    with Proxy(database_url) as proxy:
        store = PostgresStore(proxy.url)
        await store.open()
        await use_all(store)
        proxy.mute()
        with monkeypatch.context() as impatient:
            impatient.setattr(database, "_CALL_SECONDS", 0.3)
            with pytest.raises(DatabaseUnavailable, match="may have carried out the call"):
                await store.now()
        async with asyncio.timeout(30):
            await use_all(store)
            await store.close()


async def test_a_cancelled_call_over_a_mute_connection_ends_at_once(database_url: str) -> None:
    """Nobody waits for the server to confirm; the connection is left in the background."""
    with Proxy(database_url) as proxy:
        store = PostgresStore(proxy.url, connections=1)
        await store.open()
        proxy.mute()
        call = asyncio.create_task(store.now())
        await asyncio.sleep(0)
        call.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait([call])
            assert await store.now() > 0
            await store.close()


async def test_closing_waits_for_no_mute_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_CLOSE_SECONDS", 0.1)
    with Proxy(database_url) as proxy:
        store = PostgresStore(proxy.url)
        await store.open()
        await store.listen("work", lambda _: None)
        await use_all(store)
        proxy.mute()
        async with asyncio.timeout(30):
            await store.close()


async def test_every_tcp_connection_is_kept_alive(database_url: str) -> None:
    with Proxy(database_url) as proxy:
        opened = await open_connection(read_url(f"{proxy.url}?keepalives_idle=7"))
        link = opened._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 7
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
        await opened.close()


# Several hosts


async def test_of_several_hosts_the_first_that_answers_is_used(database_url: str) -> None:
    with Proxy(database_url) as proxy, refusing_port() as port:
        url = proxy.url.replace("127.0.0.1:", f"127.0.0.1:{port},127.0.0.1:")
        store = PostgresStore(url)
        await store.open()
        await start(store)
        await store.close()


async def test_a_mute_host_does_not_take_the_time_of_the_next_one(database_url: str) -> None:
    with Proxy(database_url) as proxy, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        port = deaf.getsockname()[1]
        url = proxy.url.replace("127.0.0.1:", f"127.0.0.1:{port},127.0.0.1:")
        store = PostgresStore(f"{url}?connect_timeout=1")
        await store.open()
        await store.close()


async def test_of_several_hosts_the_one_that_can_be_written_to_is_used(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After a fail-over the connections to what is a standby now are given up."""
    caplog.set_level(logging.WARNING)
    async with Scene.on(database_url) as scene:
        with Proxy(database_url) as first, Proxy(database_url) as second:
            url = first.url.replace("127.0.0.1:", f"127.0.0.1:{first.port},127.0.0.1:")
            url = url.replace(f",127.0.0.1:{first.port}", f",127.0.0.1:{second.port}")
            store = PostgresStore(url, connections=1)
            await store.open()
            assert (first.joined, second.joined) == (1, 0)
            name = await scene.value("select current_database()")
            await scene.value(f"alter database {name} set default_transaction_read_only = on")
            first.cut()
            with pytest.raises(DatabaseUnavailable):
                await store.now()  # both are read-only now
            await scene.value("begin read write")
            await scene.value(f"alter database {name} reset default_transaction_read_only")
            await scene.value("commit")
            assert await store.now() > 0
            await store.close()
