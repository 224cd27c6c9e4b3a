"""Connections know PostgreSQL's own arrays: the server is not asked for them."""

from __future__ import annotations

import asyncpg
import pytest

from holdfast import App, Client, Context, Retry
from holdfast.database.arrays import ARRAYS
from holdfast.database.connection import open_connection
from holdfast.database.urls import read_url
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker, WorkerOptions

app = App("arrays")


@app.step(retry=Retry(attempts=2))
async def double(n: int) -> int:
    return 2 * n


@app.workflow
async def calculate(ctx: Context, n: int) -> int:
    return await double(n)


async def test_they_are_what_the_server_says(any_database_url: str) -> None:
    connection = await asyncpg.connect(any_database_url)
    rows = await connection.fetch(
        "select a.oid, a.typelem, e.typname, a.typname = '_' || e.typname, a.typtype, e.typdelim "
        "from pg_type a join pg_type e on e.oid = a.typelem "
        "where a.oid = any($1::oid[]) and a.typnamespace = 'pg_catalog'::regnamespace",
        list(ARRAYS),
    )
    await connection.close()
    found = {row[0]: tuple(row)[1:] for row in rows}
    assert found == {oid: (*element, True, b"b", b",") for oid, element in ARRAYS.items()}


async def test_a_worker_and_a_client_ask_for_no_type(
    any_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    ask = asyncpg.Connection._introspect_types  # type: ignore[attr-defined]

    async def noted(self: object, types: object, timeout: float | None) -> object:
        asked.append(types)
        return await ask(self, types, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", noted)
    store = PostgresStore(any_database_url)
    worker = Worker(app, store, WorkerOptions())
    await worker.start()
    async with Client(any_database_url, app=app) as client:
        assert await (await client.start(calculate, 2)).result() == 4
        assert len((await client.runs.list()).runs) == 1
    await worker.stop(1)
    await store.close()
    assert asked == []


async def test_others_are_asked_for(database_url: str) -> None:
    """A type that users have made is known to its database alone."""
    connection = await open_connection(read_url(database_url))
    await connection.execute("create type mood as enum ('calm')")
    assert await connection.fetchval("select array['calm']::mood[]") == ["calm"]
    assert await connection.fetchval("select '{1,2}'::int[]") == [1, 2]
    assert await connection.fetchval("select $1::jsonb[]", ["1"]) == ["1"]
    await connection.close()
