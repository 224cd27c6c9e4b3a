"""Wake-ups: one connection listens for every topic of a store, and comes back by itself."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from holdfast.errors import HoldfastError
from holdfast.store.postgres.connections import Database, connect
from holdfast.store.postgres.errors import translated
from holdfast.types import Notice

if TYPE_CHECKING:
    from holdfast.store.postgres.connections import Connection, PooledConnection

logger = logging.getLogger("holdfast.listening")

Callback: TypeAlias = Callable[[str], None]

# What a connection raises that the server has ended, in whichever state it was.
_LOST: Final = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresError,
)
_LONGEST_CHANNEL: Final = 63  # bytes, as identifiers
_LONGEST_WAIT_SECONDS: Final = 2.0


def channel(schema: str, topic: str) -> str:
    """Name the PostgreSQL channel of a topic; a long one by its digest.

    >>> channel("holdfast", "work")
    'holdfast:work'
    """
    name = f"{schema}:{topic}"
    if len(name.encode()) <= _LONGEST_CHANNEL:
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:_LONGEST_CHANNEL]


class Listening:
    """The listeners of a store, and the connection that serves them all.

    The connection opens with the first listener. When it is lost it is opened again, with a
    growing pause between the tries; then every listener is called with "", because wake-ups may
    have been missed.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn, self._schema = dsn, schema
        self._callbacks: defaultdict[str, list[Callback]] = defaultdict(list)
        self._connection: Connection | None = None
        self._changing = asyncio.Lock()
        self._returning: asyncio.Task[None] | None = None

    async def notify(self, database: Database, notices: Sequence[Notice]) -> None:
        """Send wake-ups."""
        if notices:
            channels = [channel(self._schema, notice.topic) for notice in notices]
            payloads = [notice.payload for notice in notices]
            await database.rows("notify", channels, payloads)

    async def listen(self, topic: str, callback: Callback) -> Callable[[], Awaitable[None]]:
        """Call back with each payload of a topic; returns how to stop."""
        name = channel(self._schema, topic)
        async with self._changing:
            if self._connection is None and self._returning is None:
                self._connection = await self._connect()
            is_new = name not in self._callbacks
            self._callbacks[name].append(callback)
            if is_new and self._connection is not None:
                await self._listen_on(self._connection, name)

        async def stop() -> None:
            async with self._changing:
                await self._stop(name, callback)

        return stop

    async def close(self) -> None:
        """Forget all listeners, and close the connection."""
        returning, self._returning = self._returning, None
        if returning is not None:
            returning.cancel()
            await asyncio.gather(returning, return_exceptions=True)
        async with self._changing:
            self._callbacks.clear()
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.remove_termination_listener(self._lose)
            await connection.close()

    async def _listen_on(self, connection: Connection, name: str) -> None:
        """Listen for one more channel. A connection that is lost comes back with all of them."""
        try:
            await connection.add_listener(name, self._receive)
        except _LOST:
            connection.terminate()

    async def _stop(self, name: str, callback: Callback) -> None:
        callbacks = self._callbacks.get(name, [])
        if callback not in callbacks:
            return
        callbacks.remove(callback)
        if not callbacks:
            del self._callbacks[name]
            if self._connection is not None:
                with suppress(*_LOST):
                    await self._connection.remove_listener(name, self._receive)

    async def _connect(self) -> Connection:
        connection = await connect(self._dsn)
        try:
            with translated():
                for name in self._callbacks:
                    await connection.add_listener(name, self._receive)
        except BaseException:
            connection.terminate()
            raise
        connection.add_termination_listener(self._lose)
        return connection

    def _receive(self, _: PooledConnection, __: int, name: str, payload: object) -> None:
        for callback in tuple(self._callbacks.get(name, ())):
            callback(str(payload))

    def _lose(self, _: PooledConnection) -> None:
        self._connection = None
        self._returning = asyncio.get_running_loop().create_task(self._return())

    async def _return(self) -> None:
        wait = 0.05
        while True:
            try:
                async with self._changing:
                    self._connection = await self._connect()
            except HoldfastError as error:
                logger.info("cannot listen yet: %s", error)
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
            else:
                break
        self._returning = None
        for callbacks in tuple(self._callbacks.values()):
            for callback in tuple(callbacks):
                callback("")
