"""The database: its schema's functions, called over a pool of connections."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

import asyncpg

from holdfast.database.connection import close_connection, is_direct, open_connection
from holdfast.database.schema import check_schema
from holdfast.database.scripts import check_schema_name
from holdfast.database.urls import read_url, redact
from holdfast.store.postgres.errors import translated
from holdfast.store.postgres.pool import NOT_SENT, Pool, was_not_sent

if TYPE_CHECKING:
    from holdfast.database.connection import Connection

T = TypeVar("T")

logger = logging.getLogger("holdfast.database")

# No call of ours takes so long: what does not answer by then is cut off, or hangs.
_CALL_SECONDS: Final = 20.0
_SLOWEST: Final = 256 * 1024  # bytes a second, of a connection that is worth waiting for


class Database:
    """A database, a schema in it, and a pool that calls the schema's functions.

    `prepare` None: statements are prepared by name unless a pooler is in between, which may
    hand the name to another session. `tells`: transactions may send the notices of their changes.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str,
        connections: int,
        prepare: bool | None,
        check: bool,
        tells: bool = False,
    ) -> None:
        self.schema = check_schema_name(schema)
        self.tell = self.schema if tells else None
        self._url, self._size, self._check = url, connections, check
        self._prepare = prepare
        self._pool: Pool | None = None

    async def open(self) -> None:
        """Connect, and refuse a schema that this release cannot work with."""
        if self._pool is not None:
            return
        self._target = read_url(self._url)
        if self._prepare is None:
            self._prepare = self._target.parameters.prepare
        pool = Pool(self._connect, self._size)
        if self._check:
            try:
                with translated():
                    async with pool.connection() as connection:
                        await check_schema(connection, self.schema)
            except BaseException:
                await pool.close()
                raise
        self._pool = pool

    async def close(self) -> None:
        """Close every connection of the pool."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def sql(self, function: str, count: int) -> str:
        """Write the call of a function of the schema with so many parameters."""
        return call_text(self.schema, function, count)

    async def rows(
        self, function: str, *arguments: object, patience: int = 1
    ) -> list[asyncpg.Record]:
        """Call a function and return its rows. It may take `patience` times the usual time."""
        text, seconds = self.sql(function, len(arguments)), patience * _CALL_SECONDS
        with translated():
            return await self._call(
                lambda connection: connection.fetch(text, *arguments, timeout=seconds)
            )

    async def row(self, function: str, *arguments: object) -> asyncpg.Record:
        """Call a function and return its only row."""
        with translated():
            return await self.row_untranslated(function, arguments)

    async def row_untranslated(
        self, function: str, arguments: Sequence[object], *, weight: int = 0
    ) -> asyncpg.Record:
        """Call a function and return its only row; errors are the driver's own.

        A call that carries much, by `weight`, is given the time that a slow connection needs.
        """
        text, seconds = self.sql(function, len(arguments)), call_seconds(weight)
        row = await self._call(
            lambda connection: connection.fetchrow(text, *arguments, timeout=seconds)
        )
        assert row is not None, "a function without a row of its own"
        return row

    async def _call(self, call: Callable[[Connection], Awaitable[T]]) -> T:
        """Make a call; over another connection if it was not sent over the first."""
        try:
            async with self._connection() as connection:
                return await call(connection)
        except NOT_SENT as error:
            if not was_not_sent(error):
                raise
        async with self._connection() as connection:
            return await call(connection)

    def _connection(self) -> AbstractAsyncContextManager[Connection]:
        if self._pool is None:
            raise RuntimeError("the store is not open: `await store.open()` first")
        return self._pool.connection()

    async def _connect(self) -> Connection:
        """Open a connection of the pool; the first one tells whether a pooler is in between."""
        prepare = self._prepare is not False
        connection = await open_connection(
            self._target, call_seconds=_CALL_SECONDS, prepare=prepare
        )
        try:
            if await is_direct(connection) or self._prepare is not None:
                return connection
        except BaseException:
            connection.terminate()
            raise
        await close_connection(connection)
        logger.info(
            "%s is a connection pooler: no statements are prepared", redact(self._target.url)
        )
        self._prepare = False
        return await self._connect()


def call_seconds(weight: int) -> float:
    """Return after how long a call is cut off that carries so many bytes.

    >>> call_seconds(0), call_seconds(16 * 1024 * 1024)
    (20.0, 84.0)
    """
    return _CALL_SECONDS + weight / _SLOWEST


@cache
def call_text(schema: str, function: str, count: int) -> str:
    """Write a call with numbered parameters.

    >>> call_text("holdfast", "waits", 2)
    'select * from "holdfast".waits($1, $2)'
    """
    parameters = ", ".join(f"${number}" for number in range(1, count + 1))
    return f'select * from "{schema}".{function}({parameters})'
