"""Starting runs inside the caller's own transaction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker
from tests.databases import DatabaseServer

from holdfast import App
from holdfast.client import Client
from holdfast.errors import ConfigurationError, InvalidInput, RunNotFound
from holdfast.flows import shape_hash
from holdfast.local_worker import local
from holdfast.runtime.code.context import Context
from holdfast.store.memory import MemoryStore
from holdfast.store.port import WORK_TOPIC
from holdfast.store.postgres import PostgresStore
from holdfast.sync import SyncClient
from holdfast.types import DeclaredOptions

from .workflows import Order, order, tick

Begin: TypeAlias = Callable[[str], AbstractAsyncContextManager[object]]


class Abandoned(Exception):
    """The caller's transaction is rolled back."""


def dialect(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[object]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def with_pooled_asyncpg_and_json_codec(url: str) -> AsyncIterator[object]:
    """Programs often have asyncpg encode JSON for them."""

    async def prepare(connection: asyncpg.Connection[asyncpg.Record]) -> None:
        await connection.set_type_codec(
            "json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
        )

    async with asyncpg.create_pool(url, min_size=1, max_size=1, init=prepare) as pool:
        async with pool.acquire() as connection, connection.transaction():
            yield connection


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[object]:
    connection = await psycopg.AsyncConnection.connect(url, row_factory=dict_row)
    async with connection:
        yield connection


@asynccontextmanager
async def with_sqlalchemy_connection(url: str) -> AsyncIterator[object]:
    engine = create_async_engine(dialect(url, "asyncpg"))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def with_sqlalchemy_session(url: str) -> AsyncIterator[object]:
    engine = create_async_engine(dialect(url, "psycopg"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


TRANSACTIONS = [
    with_asyncpg,
    with_pooled_asyncpg_and_json_codec,
    with_psycopg,
    with_sqlalchemy_connection,
    with_sqlalchemy_session,
]


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[Client]:
    async with Client(database_url) as client:
        yield client


@pytest.mark.parametrize("begin", TRANSACTIONS)
async def test_a_start_is_part_of_the_callers_transaction(
    begin: Begin, client: Client, database_url: str
) -> None:
    async with begin(database_url) as connection:
        handle = await client.start(
            order,
            Order(7, ("ä", '"')),
            key="k",
            tags=["a"],
            headers={"b": "c"},
            connection=connection,
        )
        assert (handle.already_existed, handle.status_at_start) == (False, "running")
        assert (await client.runs.list()).runs == []
    run = await handle.get()
    assert run.input == Order(7, ("ä", '"'))
    assert (run.tags, run.headers, run.key) == (("a",), {"b": "c"}, "k")


@pytest.mark.parametrize("begin", TRANSACTIONS)
async def test_a_start_of_a_flow_is_part_of_the_callers_transaction(
    begin: Begin, client: Client, database_url: str
) -> None:
    flow = App("shop").flow("trip", input=Order)

    @flow.step
    def packed(run: Order) -> int:
        return run.number

    store = PostgresStore(database_url)
    await store.open()
    await store.ensure_flow(flow.shape, shape_hash(flow.shape))
    await store.close()
    async with begin(database_url) as connection:
        handle = await client.start(
            flow, Order(7, ("ä", '"')), key="k", tags=["a"], delay="1h", connection=connection
        )
        assert (handle.already_existed, handle.status_at_start) == (False, "running")
        assert (await client.runs.list()).runs == []
    run = await handle.get()
    assert (run.kind, run.input) == ("flow", Order(7, ("ä", '"')))


@pytest.mark.parametrize("begin", TRANSACTIONS)
async def test_a_handle_says_that_its_transaction_is_not_committed(
    begin: Begin, client: Client, database_url: str
) -> None:
    async with begin(database_url) as connection:
        handle = await client.start(tick, connection=connection)
        asks: list[Callable[[], Awaitable[object]]] = [
            *(handle.result, handle.get, handle.status, handle.log, handle.values),
            *(handle.cancel, handle.terminate, handle.pause, handle.resume),
            *(lambda: handle.signal("go"), lambda: handle.update("add")),
            lambda: handle.reschedule(queue="slow"),
        ]
        for ask in asks:
            with pytest.raises(RunNotFound, match="exists once that transaction commits") as found:
                await ask()
            assert found.value.run_id == handle.run_id
    assert await handle.status() == "running"


async def test_what_only_makes_connections_is_refused(client: Client, database_url: str) -> None:
    """A pool would start the run at once, whatever becomes of the caller's transaction."""
    engine = create_engine(dialect(database_url, "psycopg"))
    async with asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool:
        async_engine = create_async_engine(dialect(database_url, "asyncpg"))
        for maker in (pool, engine, async_engine, sessionmaker(engine)):
            with pytest.raises(ConfigurationError, match="has no transaction of yours: pass the"):
                await client.start(tick, connection=maker)
        await async_engine.dispose()
    engine.dispose()
    assert (await client.runs.list()).runs == []


@pytest.mark.parametrize("begin", TRANSACTIONS)
async def test_rolled_back_there_is_no_run(begin: Begin, client: Client, database_url: str) -> None:
    async def abandon() -> None:
        async with begin(database_url) as connection:
            await client.start_many(tick, [None, None], keys=["a", "b"], connection=connection)
            raise Abandoned

    with pytest.raises(Abandoned):
        await abandon()
    assert (await client.runs.list()).runs == []


async def test_the_same_key_is_found_from_inside_a_transaction(
    client: Client, database_url: str
) -> None:
    """B5."""
    first = await client.start(tick, key="k")
    async with with_psycopg(database_url) as connection:
        again = await client.start(tick, key="k", connection=connection)
    assert (again.run_id, again.already_existed) == (first.run_id, True)


async def test_workers_are_told_at_the_commit_where_that_is_asked_for(
    client: Client, database_url: str
) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    store = client._session.store  # pyright: ignore[reportPrivateUsage]
    stop = await store.listen(WORK_TOPIC, told.put_nowait)
    async with with_psycopg(database_url) as connection:
        await client.start(tick, queue="silent", connection=connection)
    async with with_asyncpg(database_url) as connection:
        await client.start(tick, queue="loud", connection=connection, notify=True)
        assert told.empty()
    assert await told.get() == "loud"
    await stop()


@pytest.mark.parametrize("begin", TRANSACTIONS)
async def test_a_start_by_name_tells_the_workers_of_the_declared_queue(
    begin: Begin, client: Client, database_url: str
) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    store = client._session.store  # pyright: ignore[reportPrivateUsage]
    await store.declare_options([DeclaredOptions("shop/mail", 1, 60.0, "post")])
    stop = await store.listen(WORK_TOPIC, told.put_nowait)
    async with begin(database_url) as connection:
        await client.start_many("shop/mail", [1, 2], connection=connection, notify=True)
        assert told.empty()
    assert await told.get() == "post"
    await stop()


async def test_bad_input_leaves_the_transaction_usable(client: Client, database_url: str) -> None:
    """Trap 20."""
    async with with_psycopg(database_url) as connection:
        with pytest.raises(InvalidInput):
            await client.start(order, {"number": "seven"}, connection=connection)  # type: ignore[arg-type]  # pyright: ignore
        handle = await client.start(tick, connection=connection)
    assert (await handle.get()).status == "running"


async def test_a_value_other_than_a_connection_is_refused(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="not a connection that a start can use"):
        await client.start(tick, connection="postgresql://localhost")
    with pytest.raises(ConfigurationError, match="connection"):
        await client.start(tick, notify=True)


def test_a_synchronous_client_joins_a_psycopg_transaction(database_url: str) -> None:
    with SyncClient(database_url) as client:
        with psycopg.connect(database_url) as connection:
            handle = client.start(order, Order(7), connection=connection, notify=True)
            assert client.runs.list().runs == []
        assert handle.get().input == Order(7)
        with psycopg.connect(database_url) as connection:
            lost = client.start(tick, connection=connection)
            connection.rollback()
        assert lost.run_id not in {run.run_id for run in client.runs.iterate()}


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_a_synchronous_client_joins_a_transaction_of_sqlalchemy(
    kind: str, database_url: str
) -> None:
    engine = create_engine(dialect(database_url, "psycopg"))
    begin = engine.begin if kind == "connection" else Session(engine).begin
    with SyncClient(database_url) as client:
        with begin() as joined:
            connection = joined.session if isinstance(joined, SessionTransaction) else joined
            connection.execute(text("create table mine (id int)"))
            handles = client.start_many(order, [Order(1), Order(2)], connection=connection)
            assert client.runs.list().runs == []
        assert [handle.get().status for handle in handles] == ["running", "running"]
    engine.dispose()


async def test_a_synchronous_client_refuses_an_asynchronous_connection(database_url: str) -> None:
    client = SyncClient(database_url)
    async with with_psycopg(database_url) as connection:
        with pytest.raises(ConfigurationError, match="asynchronous"):
            client.start(tick, connection=connection)


async def test_a_connection_is_used_for_the_schema_of_the_clients_store(
    elsewhere: DatabaseServer,
) -> None:
    """A7. Of `local`, and of a store that the client was given; the database has no other."""
    app = App("shop")

    @app.workflow
    async def echo(ctx: Context, value: object) -> object:
        return value

    with elsewhere.database() as url:
        connection = await asyncpg.connect(url)
        async with local(app, url, schema=elsewhere.schema) as client:
            await client.queues.create("parcels")
            await client.topics.subscribe("a.b", workflow=echo)
            async with connection.transaction():
                handle = await client.start("echo", 1, connection=connection, notify=True)
                await client.queues.send("parcels", 7, connection=connection, notify=True)
                event = await client.topics.publish("a.b", connection=connection, notify=True)
            assert (await handle.result("60s"), event.workflows) == (1, 1)
            [message] = await client.queues.receive("parcels")
            async with connection.transaction():
                assert await client.queues.ack(message, connection=connection) == [True]
            assert await client.queues.messages("parcels") == []
        store = PostgresStore(url, schema=elsewhere.schema)
        await store.open()
        async with Client(store=store, app=app) as client:
            handle = await client.start("echo", 1, connection=connection)
            assert (await handle.get()).input == 1
        await store.close()
        await connection.close()


async def test_a_client_of_a_store_in_memory_takes_no_connection(database_url: str) -> None:
    async with with_asyncpg(database_url) as connection, Client(store=MemoryStore()) as client:
        calls: list[Awaitable[object]] = [
            client.start(tick, connection=connection),
            client.start("shop/tick", connection=connection),
            client.start_many(tick, [None], connection=connection),
            client.queues.send("parcels", 7, connection=connection),
            client.topics.publish("a.b", connection=connection),
        ]
        for call in calls:
            with pytest.raises(ConfigurationError, match="in memory"):
                await call
