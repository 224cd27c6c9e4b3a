"""Wake-ups: one connection listens for every topic of a store, and comes back by itself.

A connection can fall silent without an error: a firewall forgets it, a pooler takes the
LISTEN and keeps the notifications. So it is asked at intervals whether it still answers, and,
where a pooler may be in between, first tried with a notification of its own. Where listening is
not possible, those who listen find out by looking, as they do for wake-ups that were lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import uuid4

from holdfast.database.connection import LOST, close_connection, is_direct, open_connection
from holdfast.database.urls import read_url, redact
from holdfast.errors import DatabaseError, DatabaseUnavailable, HoldfastError
from holdfast.store.postgres.connections import Database
from holdfast.store.postgres.errors import translated
from holdfast.types import Notice

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    from holdfast.database.connection import Connection

    AnyConnection: TypeAlias = Connection | PoolConnectionProxy

logger = logging.getLogger("holdfast.listening")

Callback: TypeAlias = Callable[[str], None]

_LONGEST_CHANNEL: Final = 63  # bytes, as identifiers
_ASK_SECONDS: Final = 5.0  # between two questions whether the connection still answers
_ANSWER_SECONDS: Final = 3.0
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.05, 2.0
_IMPOSSIBLE_WAIT_SECONDS: Final = 60.0  # before listening is tried again where it cannot work


class NothingHeard(DatabaseError):
    """The connection takes LISTEN, and notifications do not come through."""


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

    def __init__(self, database: Database, url: str, listen_url: str | None = None) -> None:
        self._database, self._url = database, listen_url or url
        self._is_apart = listen_url is not None
        self._callbacks: defaultdict[str, list[Callback]] = defaultdict(list)
        self._connection: Connection | None = None
        self._using = asyncio.Lock()  # the connection does one thing at a time
        self._keeper: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()  # to connect, for the first time
        self._lost = asyncio.Event()
        self._stops: set[asyncio.Task[None]] = set()

    async def notify(self, notices: Sequence[Notice]) -> None:
        """Send wake-ups."""
        if notices:
            channels = [channel(self._database.schema, notice.topic) for notice in notices]
            payloads = [notice.payload for notice in notices]
            await self._database.rows("notify", channels, payloads)

    async def listen(self, topic: str, callback: Callback) -> Callable[[], Awaitable[None]]:
        """Call back with each payload of a topic; returns how to stop.

        Returns also where listening is not possible now: the callback hears "" once it is.
        """
        name = channel(self._database.schema, topic)
        self._callbacks[name].append(callback)
        if self._keeper is None:
            self._tried.clear()
            self._keeper = asyncio.create_task(self._keep(), name="holdfast listening")
        await self._tried.wait()
        if self._connection is not None:
            await self._change(self._connection, name)

        async def stop() -> None:
            self._stop(name, callback)

        return stop

    async def close(self) -> None:
        """Forget all listeners, and close the connection."""
        self._callbacks.clear()
        keeper, self._keeper = self._keeper, None
        tasks = [*self._stops, *([keeper] if keeper is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The listeners

    def _stop(self, name: str, callback: Callback) -> None:
        """Call back no more; the server hears of it in the background."""
        callbacks = self._callbacks.get(name, [])
        if callback not in callbacks:
            return
        callbacks.remove(callback)
        if callbacks:
            return
        del self._callbacks[name]
        if self._connection is not None:
            task = asyncio.create_task(self._change(self._connection, name))
            self._stops.add(task)
            task.add_done_callback(self._stops.discard)

    async def _change(self, connection: Connection, name: str) -> None:
        """Listen for a channel, or no more, as there are listeners for it or not.

        A connection that is lost meanwhile comes back with the channels that there are then.
        """
        async with self._using:
            try:
                if name in self._callbacks:
                    await connection.add_listener(name, self._receive)
                else:
                    await connection.remove_listener(name, self._receive)
            except LOST:
                connection.terminate()

    def _receive(self, _: AnyConnection, __: int, name: str, payload: object) -> None:
        for callback in tuple(self._callbacks.get(name, ())):
            callback(str(payload))

    def _wake_all(self) -> None:
        for callbacks in tuple(self._callbacks.values()):
            for callback in tuple(callbacks):
                callback("")

    # The connection

    async def _keep(self) -> None:
        """Have a connection as long as there is a store, and see that it answers."""
        while True:
            connection = await self._established()
            try:
                if self._tried.is_set():
                    self._wake_all()
                self._tried.set()
                await self._until_lost(connection)
            finally:
                self._connection = None
                connection.remove_termination_listener(self._lose)
                await close_connection(connection)

    async def _established(self) -> Connection:
        """Connect and listen for every channel, however often that has to be tried."""
        wait, said = _FIRST_WAIT_SECONDS, False
        while True:
            try:
                with translated():
                    return await self._connect()
            except HoldfastError as error:
                possible = isinstance(error, DatabaseUnavailable)
                level = logging.INFO if said else logging.WARNING
                logger.log(level, "cannot listen, so work is found by looking: %s", error)
                said = True
            except Exception:
                logger.exception("cannot listen, so work is found by looking")
                possible = False
            self._tried.set()
            await asyncio.sleep(wait if possible else _IMPOSSIBLE_WAIT_SECONDS)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    async def _connect(self) -> Connection:
        connection = await open_connection(read_url(self._url), call_seconds=_ANSWER_SECONDS)
        try:
            if not await is_direct(connection) or self._is_apart:
                await self._try(connection)
            async with self._using:
                for name in tuple(self._callbacks):
                    await connection.add_listener(name, self._receive)
        except BaseException:
            connection.terminate()
            raise
        self._lost.clear()
        connection.add_termination_listener(self._lose)
        self._connection = connection
        if connection.is_closed():  # before it had been said whom to tell
            self._lost.set()
        return connection

    async def _try(self, connection: Connection) -> None:
        """Send a notification through the pool, and see that it comes.

        Raises NothingHeard.
        """
        heard = asyncio.Event()
        name = channel(self._database.schema, f"try/{uuid4().hex}")

        def hear(*_: object) -> None:
            heard.set()

        await connection.add_listener(name, hear)
        await self._database.rows("notify", [name], [""])
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await heard.wait()
        except TimeoutError:
            raise NothingHeard(
                f"no notification comes through {redact(self._url)}: behind a pooler in "
                "transaction mode give the server's own address with --listen-database or "
                "$HOLDFAST_LISTEN_DATABASE_URL"
            ) from None
        finally:
            with suppress(*LOST):
                await connection.remove_listener(name, hear)

    async def _until_lost(self, connection: Connection) -> None:
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(_ASK_SECONDS):
                    await self._lost.wait()
            except TimeoutError:
                await self._ask(connection)

    async def _ask(self, connection: Connection) -> None:
        async with self._using:
            try:
                await connection.execute("select 1")
            except LOST as error:
                reason = str(error) or type(error).__name__
                logger.info("the listening connection does not answer: %s", reason)
                self._lost.set()

    def _lose(self, _: AnyConnection) -> None:
        self._lost.set()
