"""A connection that stays open and carries nothing, as behind a firewall that forgot it."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import DatabaseUnavailable
from holdfast.store.postgres import PostgresStore, database
from tests.proxy import Proxy


async def test_a_call_over_a_mute_connection_fails_and_the_next_one_takes_another(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12. A caller that waited for an answer for ever would never claim again."""
    monkeypatch.setattr(database, "_CALL_SECONDS", 0.3)
    with Proxy(database_url) as proxy:
        store = PostgresStore(proxy.url, connections=1)
        await store.open()
        before = await store.now()
        proxy.mute()
        with pytest.raises(DatabaseUnavailable, match="TimeoutError"):
            await asyncio.wait_for(store.now(), 30)
        assert await asyncio.wait_for(store.now(), 30) > before
        await store.close()
