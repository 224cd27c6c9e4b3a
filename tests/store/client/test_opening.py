"""Opening and closing clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.clusters import Homes

from holdfast.client import Client, session
from holdfast.database.embedded import EmbeddedServer
from holdfast.errors import (
    DatabaseUnavailable,
    InvalidDatabaseURL,
    InvalidSchemaName,
    SchemaMissing,
)
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.sync import SyncClient

from .workflows import tick


async def test_the_environment_names_the_database(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", database_url)
    async with Client() as client:
        handle = await client.start(tick)
    async with Client(database_url) as client:
        assert (await client.runs.get(handle.run_id)).name == "tick"


async def test_a_database_without_the_schema_is_refused(empty_database_url: str) -> None:
    """T12."""
    with pytest.raises(SchemaMissing, match="holdfast migrate"):
        await Client(empty_database_url).open()


async def test_a_missing_schema_of_another_name_is_refused(database_url: str) -> None:
    """T12."""
    with pytest.raises(SchemaMissing, match="elsewhere"):
        await Client(database_url, schema="elsewhere").open()
    with pytest.raises(InvalidSchemaName):
        await Client(database_url, schema='a"; drop table runs').open()


async def test_a_database_that_does_not_answer_is_refused() -> None:
    with pytest.raises(DatabaseUnavailable):
        await Client("postgresql://127.0.0.1:1/none").open()
    with pytest.raises(InvalidDatabaseURL):
        await Client("localhost/none").open()


async def test_opening_and_closing_twice_changes_nothing(database_url: str) -> None:
    client = Client(database_url)
    await client.open()
    await client.open()
    await client.start(tick)
    await client.close()
    await client.close()
    async with client:
        assert len((await client.runs.list()).runs) == 1


async def test_a_store_that_was_given_stays_open() -> None:
    store = MemoryStore()
    async with Client(store=store) as client:
        handle = await client.start(tick)
    assert handle.run_id in await store.get_runs([handle.run_id])


async def test_the_embedded_server_is_held_while_the_client_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_DATABASE_URL", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    released: list[Path] = []

    class Server:
        home, url = tmp_path, "postgresql://127.0.0.1:1/none"

        def release(self) -> None:
            released.append(self.home)

    def acquire(home: Path | None = None) -> Server:
        return Server()

    monkeypatch.setattr(EmbeddedServer, "acquire", acquire)
    with pytest.raises(DatabaseUnavailable):
        await Client().open()
    assert released == [tmp_path]


async def test_two_clients_find_an_embedded_database_without_the_schema_and_make_it(
    tmp_path: Path, homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else does: a program may be started before its worker."""
    monkeypatch.delenv("HOLDFAST_DATABASE_URL", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("HOLDFAST_HOME", str(homes.make(tmp_path / "home", migrated=False)))
    async with Client() as one, Client() as other:
        handle = await one.start(tick)
        assert (await other.runs.get(handle.run_id)).name == "tick"


def test_a_synchronous_client_that_cannot_open_leaves_no_thread(empty_database_url: str) -> None:
    client = SyncClient(empty_database_url)
    with pytest.raises(SchemaMissing):
        client.open()
    assert not client._portal.is_open  # pyright: ignore[reportPrivateUsage]


async def test_callers_that_open_at_once_share_one_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first calls of an agent's tools do: what the slower ones opened is closed."""
    opened, connect = list[str](), session.resolved_store

    @asynccontextmanager
    async def counted(*given: Any) -> AsyncGenerator[Store]:
        async with connect(*given) as store:
            opened.append("open")
            yield store
        opened.remove("open")

    monkeypatch.setattr(session, "resolved_store", counted)
    client = Client(database_url)
    await asyncio.gather(*(client.open() for _ in range(3)))
    assert len(opened) == 1
    await client.close()
    assert not opened
