"""Open a store on a database: all parts of holdfast that need a store use these functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Final

from holdfast.database.migrate import prepare_schema
from holdfast.database.resolve import Connecting, Database, resolve_database
from holdfast.errors import SchemaMissing, SchemaOutdated
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.database import QUERY_SECONDS
from holdfast.values.waits import require_asyncio

STAND_IN: Final[ContextVar[Callable[[], Store] | None]] = ContextVar(
    "holdfast_stand_in", default=None
)
"""Returns the store of a test, which clients use instead of that of a database."""


def make_store(
    database: Database,
    schema: str,
    connections: int = 4,
    *,
    query_seconds: float = QUERY_SECONDS,
    check: bool = True,
) -> Store:
    """Return a store on a database, or that of clients over several.

    It is not connected yet: its method `open` connects. Unless `check` is False, the schema of
    another release is refused then, and a database that is a shard of several if not all are named.
    """
    if database.shards:
        from holdfast.store.shards import sharded

        parts = (
            make_store(each, schema, connections, query_seconds=query_seconds, check=check)
            for each in database.parts
        )
        return sharded(list(parts))
    connecting = database.connecting
    make: Callable[..., Store] = PostgresStore
    if connecting.redis_url is not None:
        from holdfast.store.redis import RedisHintedStore

        make = partial(RedisHintedStore, connecting.redis_url)
    return make(
        database.url,
        schema=schema,
        connections=connections,
        prepare=connecting.prepare,
        listen_url=connecting.listen_url,
        read_url=connecting.read_url,
        tells=True,
        query_seconds=query_seconds,
        check=check,
        alone=check and database.number is None,
    )


def thread_store(database: Database, schema: str) -> Store:
    """Return a store for a thread of a worker, whose own store has checked the schema.

    Another release may have migrated it since: the worker works on beside that one.
    """
    return make_store(database, schema, connections=1, check=False)


@asynccontextmanager
async def opened_store(
    database: Database, schema: str, connections: int = 4, *, query_seconds: float = QUERY_SECONDS
) -> AsyncGenerator[Store]:
    """Connect a store to a database for the length of the block.

    Raises DatabaseError; its subclasses say what is wrong, and what to do about it.
    """
    store = make_store(database, schema, connections, query_seconds=query_seconds)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def resolved_store(
    url: str | None, schema: str, connecting: Connecting
) -> AsyncGenerator[Store]:
    """Find the database, hold it, and connect a store to it for the length of the block.

    The schema of an embedded database is brought up to date: no other program does that. Raises
    what `resolve_database` and `opened_store` raise. In a test of `Environment`, what it runs gets
    the store of the test.
    """
    if (stand_in := STAND_IN.get()) is not None:
        yield stand_in()
        return
    require_asyncio()
    # Starting the embedded server takes a moment; another program may be starting it already.
    database = await asyncio.to_thread(resolve_database, url, connecting=connecting)
    with database:
        store = make_store(database, schema)
        try:
            await _open(store, database, schema)
            yield store
        finally:
            await store.close()


async def _open(store: Store, database: Database, schema: str) -> None:
    try:
        await store.open()
    except (SchemaMissing, SchemaOutdated):
        if database.server is None:
            raise
        await prepare_schema(database.url, schema)
        await store.open()
