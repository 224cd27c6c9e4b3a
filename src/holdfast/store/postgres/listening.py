"""Wake-ups: one connection listens for every topic of a store, and is restored when it is lost.

A connection can become silent without an error: a firewall forgets it, or a pooler accepts LISTEN
and does not pass notifications on. Therefore the connection is tested at intervals. If a pooler may
be in between, it is first tested with a notification of its own. If listening is not possible,
listeners find work by polling, as they do after lost wake-ups.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias
from uuid import UUID, uuid4

from asyncpg.pool import PoolConnectionProxy

from holdfast.database.connection import (
    LOST,
    Connection,
    close_connection,
    is_direct,
    open_connection,
)
from holdfast.database.urls import read_url, redact
from holdfast.errors import DatabaseError, DatabaseUnavailable, HoldfastError
from holdfast.store.port.listening import NoHints
from holdfast.store.postgres.database import Database, Part, translated
from holdfast.store.postgres.queries import read_runs
from holdfast.types import Notice, RunRecord
from holdfast.values.loggers import get_logger
from holdfast.values.waits import set_within

logger = get_logger("holdfast.listening")

AnyConnection: TypeAlias = "Connection | PoolConnectionProxy"
Callback: TypeAlias = Callable[[str], None]

_LONGEST_CHANNEL: Final = 63  # bytes, as identifiers
_ASK_SECONDS: Final = 5.0  # between two tests of the connection
_ANSWER_SECONDS: Final = 3.0
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.05, 2.0
_IMPOSSIBLE_WAIT_SECONDS: Final = 60.0  # until listening is tried again after it proved impossible


class NothingHeard(DatabaseError):
    """The connection accepts LISTEN, but notifications do not arrive."""


def channel(schema: str, topic: str) -> str:
    """Return the PostgreSQL channel of a topic; for a long topic, its digest.

    >>> channel("holdfast", "work")
    'holdfast:work'
    """
    name = f"{schema}:{topic}"
    if len(name.encode()) <= _LONGEST_CHANNEL:
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:_LONGEST_CHANNEL]


class PostgresListening(Part, NoHints):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._listeners = Listeners(database)

    async def wait_for_end(self, topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        return read_runs(await self._database.rows("wait_for_end", topic, run_ids))

    async def forget_waits(self, topic: str) -> None:
        await self._database.row("forget_waits", topic)

    async def notify(self, notices: Sequence[Notice]) -> None:
        if notices:
            channels = [channel(self._database.schema, notice.topic) for notice in notices]
            payloads = [notice.payload for notice in notices]
            await self._database.rows("notify", channels, payloads)

    async def listen(
        self, topic: str, callback: Callable[[str], None]
    ) -> Callable[[], Awaitable[None]]:
        name = channel(self._database.schema, topic)
        try:
            await self._listeners.add(name, callback)
        except BaseException:  # a caller that is cancelled cannot stop it
            self._listeners.remove(name, callback)
            raise

        async def stop() -> None:
            self._listeners.remove(name, callback)

        return stop


class Listeners:
    """The listeners of a store, and the connection that serves them all.

    The connection opens with the first listener. When it is lost it is opened again, with a
    growing pause between the attempts. Then every listener is called with "", because wake-ups
    may have been missed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._url = database.listen_url or database.url
        self._is_apart = database.listen_url is not None
        self._callbacks: defaultdict[str, list[Callback]] = defaultdict(list)
        self._connection: Connection | None = None
        self._using = asyncio.Lock()  # the connection does one thing at a time
        self._keeper: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()  # set after the first attempt to connect
        self._lost = asyncio.Event()
        self._stops: set[asyncio.Task[None]] = set()

    @property
    def listens(self) -> bool:
        """True while there is a connection that listens."""
        return self._connection is not None

    async def add(self, name: str, callback: Callback) -> None:
        """Call back with each payload of a channel.

        Returns also if listening is not possible now: `callback` is called with "" once it is.
        """
        self._callbacks[name].append(callback)
        if self._keeper is None:
            self._tried.clear()
            self._keeper = asyncio.create_task(self._keep(), name="holdfast listening")
        await self._tried.wait()
        if self._connection is not None:
            await self._change(self._connection, name)

    async def close(self) -> None:
        """Forget all listeners, and close the connection."""
        self._callbacks.clear()
        keeper, self._keeper = self._keeper, None
        tasks = [*self._stops, *([keeper] if keeper is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def remove(self, name: str, callback: Callback) -> None:
        """Stop calling back; the server is told in the background."""
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
        """Listen on a channel if it has listeners, and stop if it has none.

        If the connection is lost meanwhile, the next one listens on the channels of that moment.
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

    async def _keep(self) -> None:
        """Keep a connection while the store is open, and check that it answers."""
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
        """Connect and listen on every channel; repeat this until it succeeds."""
        wait, said = _FIRST_WAIT_SECONDS, False
        while True:
            try:
                with translated():
                    connection = await self._connect()
                if said:
                    logger.info("notifications arrive again")
                return connection
            except HoldfastError as error:
                possible = isinstance(error, DatabaseUnavailable)
                level = logging.DEBUG if said else logging.WARNING
                logger.log(level, "cannot listen, so work is found by polling: %s", error)
                said = True
            except Exception:
                logger.exception("cannot listen, so work is found by polling")
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
        if connection.is_closed():  # before the termination listener was added
            self._lost.set()
        return connection

    async def _try(self, connection: Connection) -> None:
        """Send a notification over the pool, and wait until it arrives.

        Raises NothingHeard.
        """
        heard = asyncio.Event()
        name = channel(self._database.schema, f"try/{uuid4().hex}")

        def hear(*_: object) -> None:
            heard.set()

        await connection.add_listener(name, hear)
        await self._database.rows("notify", [name], [""])
        try:
            if not await set_within(heard, _ANSWER_SECONDS):
                raise NothingHeard(
                    f"no notification arrives through {redact(self._url)}: behind a pooler in "
                    "transaction mode give the server's own address with --listen-database or "
                    "$HOLDFAST_LISTEN_DATABASE_URL"
                )
        finally:
            with suppress(*LOST):
                await connection.remove_listener(name, hear)

    async def _until_lost(self, connection: Connection) -> None:
        while not self._lost.is_set():
            if not await set_within(self._lost, _ASK_SECONDS):
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
