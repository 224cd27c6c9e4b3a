"""The connections: a pool for calls, single ones for listening."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from holdfast.store.postgres.errors import translated
from holdfast.store.schema import check_schema
from holdfast.store.scripts import check_schema_name

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    Borrowed: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    PooledConnection: TypeAlias = (
        asyncpg.pool.PoolConnectionProxy[asyncpg.Record] | asyncpg.Connection[asyncpg.Record]
    )

_CONNECT_SECONDS: Final = 10.0
# No call of ours takes so long: whoever does not answer by then is cut off, or hangs.
_CALL_SECONDS: Final = 20.0
_UNBOUNDED: Final = 1 << 62
# Arrays of a few hundred make plans look expensive; compiling them would take longer.
_SETTINGS: Final = {"application_name": "holdfast", "jit": "off"}

# After these a connection is of no use to anybody.
_BROKEN: Final = (asyncpg.InternalClientError, asyncpg.OperatorInterventionError, TimeoutError)


class Database:
    """A database, a schema in it, and a pool that calls the schema's functions."""

    def __init__(
        self, dsn: str, *, schema: str, connections: int, prepare: bool, check: bool
    ) -> None:
        self.schema = check_schema_name(schema)
        self._dsn, self._size = dsn, connections
        self._cached_statements = 100 if prepare else 0
        self._check = check
        self._pool: Pool | None = None
        self._room = asyncio.Semaphore(connections)
        self._idle: list[Borrowed] = []

    async def open(self) -> None:
        """Connect, and refuse a schema that this release cannot work with."""
        if self._pool is not None:
            return
        with translated():
            pool = await asyncpg.create_pool(
                self._dsn,
                min_size=0,  # a floor would be restored, and complained about, at each outage
                max_size=self._size,
                max_queries=_UNBOUNDED,
                max_inactive_connection_lifetime=0,
                statement_cache_size=self._cached_statements,
                timeout=_CONNECT_SECONDS,
                command_timeout=_CALL_SECONDS,
                server_settings=_SETTINGS,
                reset=_keep,
            )
            if self._check:
                try:
                    async with pool.acquire() as connection:
                        await check_schema(connection, self.schema)
                except BaseException:
                    await pool.close()
                    raise
        self._pool, self._room = pool, asyncio.Semaphore(self._size)

    async def close(self) -> None:
        """Close every connection of the pool."""
        pool, self._pool = self._pool, None
        idle, self._idle = self._idle, []
        if pool is not None:
            for connection in idle:
                await pool.release(connection)
            await pool.close()

    @property
    def pool(self) -> Pool:
        """The open pool."""
        if self._pool is None:
            raise RuntimeError("the store is not open: `await store.open()` first")
        return self._pool

    def sql(self, function: str, count: int) -> str:
        """Write the call of a function of the schema with so many parameters."""
        return call_text(self.schema, function, count)

    async def rows(self, function: str, *arguments: object) -> list[asyncpg.Record]:
        """Call a function and return its rows."""
        text = self.sql(function, len(arguments))
        with translated():
            async with self._connection() as connection:
                return await connection.fetch(text, *arguments)

    async def row(self, function: str, *arguments: object) -> asyncpg.Record:
        """Call a function and return its only row."""
        with translated():
            return await self.row_untranslated(function, arguments)

    async def row_untranslated(self, function: str, arguments: Sequence[object]) -> asyncpg.Record:
        """Call a function and return its only row; errors are the driver's own."""
        text = self.sql(function, len(arguments))
        async with self._connection() as connection:
            row = await connection.fetchrow(text, *arguments)
        assert row is not None, "a function without a row of its own"
        return row

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[Borrowed]:
        """Lend a connection; one that the server has ended, or is mute, is not kept for others.

        Those that did well stay here, the last one first: the pool would take a task of the
        event loop to have each back.
        """
        async with self._room:
            connection = await self._idle_connection() or await self.pool.acquire()
            try:
                yield connection
            except BaseException as error:
                if isinstance(error, _BROKEN):
                    connection.terminate()
                await self.pool.release(connection)
                raise
            self._idle.append(connection)

    async def _idle_connection(self) -> Borrowed | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            await self.pool.release(connection)
        return None


async def connect(dsn: str) -> Connection:
    """Open a connection of its own, outside the pool."""
    with translated():
        return await asyncpg.connect(dsn, timeout=_CONNECT_SECONDS, server_settings=_SETTINGS)


@cache
def call_text(schema: str, function: str, count: int) -> str:
    """Write a call with numbered parameters.

    >>> call_text("holdfast", "waits", 2)
    'select * from "holdfast".waits($1, $2)'
    """
    parameters = ", ".join(f"${number}" for number in range(1, count + 1))
    return f'select * from "{schema}".{function}({parameters})'


async def _keep(_: PooledConnection) -> None:
    """Release a connection as it is: every call is one statement, and leaves nothing behind."""
