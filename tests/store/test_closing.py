"""The connections of a store are closed although the call of `close` is cancelled."""

from __future__ import annotations

import asyncio

from holdfast.store.postgres import PostgresStore


async def test_a_store_is_closed_although_its_closing_is_cancelled(database_url: str) -> None:
    """As in a scope of anyio: connections would stay open as long as the program lives."""
    store = PostgresStore(database_url)
    await store.open()
    await store.listen("shop", lambda _: None)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert store._database._pool is None
