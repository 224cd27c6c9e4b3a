"""A connection that stays open and carries nothing, as behind a firewall that forgot it."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App
from holdfast.client import Client
from holdfast.database import connection
from holdfast.errors import DatabaseUnavailable
from holdfast.store.postgres import PostgresStore, database
from holdfast.worker import Worker, releases
from tests.proxy import Proxy


async def test_a_call_over_a_mute_connection_fails_and_the_next_one_takes_another(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12. A caller that waited for an answer for ever would never claim again."""
    with Proxy(database_url) as proxy:
        store = PostgresStore(proxy.url, connections=1)
        await store.open()
        before = await store.now()
        proxy.mute()
        with monkeypatch.context() as impatient:
            impatient.setattr(database, "_CALL_SECONDS", 0.3)
            with pytest.raises(
                DatabaseUnavailable, match="may have carried out the call: the time limit"
            ):
                await asyncio.wait_for(store.now(), 30)
        assert await asyncio.wait_for(store.now(), 30) > before
        await store.close()


async def test_worker_with_a_message_in_flight_stops_although_its_database_is_mute(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13. It does not wait for a call as long as a call may take."""
    monkeypatch.setattr(database, "_CALL_SECONDS", 3600.0)
    monkeypatch.setattr(releases, "_TRY_SECONDS", 0.1)
    monkeypatch.setattr(releases, "_FAREWELL_SECONDS", 0.5)
    monkeypatch.setattr(database, "_LAST_CALLS_SECONDS", 0.1)
    monkeypatch.setattr(connection, "_CLOSE_SECONDS", 0.1)
    app, begun = App("shop"), asyncio.Event()

    @app.consumer("orders")
    async def book(number: int) -> None:
        begun.set()
        await asyncio.sleep(3600)

    async with Client(database_url) as client:
        await client.queues.create("orders", visibility="1s")
        with Proxy(database_url) as proxy:
            store = PostgresStore(proxy.url)
            worker = Worker(app, store)
            await worker.start()
            await client.queues.send("orders", 1)
            async with asyncio.timeout(60):
                await begun.wait()
                proxy.mute()
                proxy.refuse()
                await worker.stop(grace=0.1)
                await store.close()
