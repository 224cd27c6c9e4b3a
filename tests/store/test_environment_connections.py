"""What code sends with `connection=` in a test whose runs are in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from holdfast import App, Client, Context
from holdfast.errors import ConfigurationError, RunFailed
from holdfast.sync import SyncClient
from holdfast.testing import Environment

Send: TypeAlias = Callable[[Client, object], Awaitable[object]]

app = App("tested-sends")


@app.workflow
async def ship(ctx: Context, item: str) -> str:
    return item


SENDS: list[Send] = [
    lambda client, connection: client.start(ship, "lamp", connection=connection, notify=True),
    lambda client, connection: client.start("ship", "lamp", connection=connection),
    lambda client, connection: client.start_many(ship, ["lamp"], connection=connection),
    lambda client, connection: client.queues.send("boxes", "lamp", connection=connection),
    lambda client, connection: client.topics.publish("sold", "lamp", connection=connection),
]


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("kind", [asyncpg.Connection, AsyncSession])
async def test_a_send_of_a_transaction_is_refused_and_leaves_nothing(
    database_url: str, kind: type, send: Send
) -> None:
    """It would go to the database of the data, which may be a developer's, with workers."""
    shop = App("tested-shop")

    async def sell(connection: Any) -> None:
        async with Client(database_url) as client:
            await send(client, connection)

    sell.__annotations__["connection"] = kind
    sold = shop.transaction(sell)

    @shop.workflow
    async def checkout(ctx: Context) -> None:
        await sold()

    async with Client(database_url) as client:
        await client.queues.create("boxes")
        await client.topics.subscribe("sold", workflow=ship)
        async with Environment(shop, database=database_url) as env:
            with pytest.raises(RunFailed, match=r"local\(app, database\)"):
                await env.run(checkout)
            env.replace(sold, lambda: None)
            await env.run(checkout)
        assert (await client.runs.list()).runs == []
        assert await client.queues.messages("boxes") == []


async def test_a_send_of_a_plain_transaction_is_refused(database_url: str) -> None:
    shop = App("tested-shop")

    @shop.transaction
    def sell(connection: psycopg.Connection) -> None:
        with SyncClient(database_url) as client:
            client.start(ship, "lamp", connection=connection)

    @shop.workflow
    async def checkout(ctx: Context) -> None:
        await sell()

    async with Environment(shop, database=database_url) as env:
        with pytest.raises(RunFailed, match=r"local\(app, database\)"):
            await env.run(checkout)
    async with Client(database_url) as client:
        assert (await client.runs.list()).runs == []


async def test_the_client_of_an_environment_names_the_way_out(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    async with Environment(app, database=database_url) as env:
        with pytest.raises(ConfigurationError, match=r"local\(app, database\)"):
            await env.client.start(ship, "lamp", connection=connection)
    async with Client(database_url) as client, connection.transaction():  # outside of a transaction
        await client.start(ship, "lamp", connection=connection)
        assert await connection.fetchval("select count(*) from holdfast.runs") == 1
    await connection.close()
