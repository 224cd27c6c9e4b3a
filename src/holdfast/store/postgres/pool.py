"""Connections, lent for one call each, and kept for further calls while they are sound."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import asyncpg

from holdfast.database.connection import LOST, close_connection

if TYPE_CHECKING:
    from holdfast.database.connection import Connection

T = TypeVar("T")

# A connection that was idle for longer is tested before use: a firewall may have forgotten it.
_TRUSTED_SECONDS: Final = 10.0
_FRESH_SECONDS: Final = 0.001  # after a pause so short a connection need not be looked at
_ANSWER_SECONDS: Final = 2.0
_LAST_CALLS_SECONDS: Final = 2.0

# After these errors of the server a connection is useless: it has ended, or it leads to a server
# that has become a standby.
_BROKEN: Final = (
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresConnectionError,
    asyncpg.ReadOnlySQLTransactionError,
)

# The driver raises these if the end of the session had arrived before the call was sent.
NOT_SENT: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError)
_NOT_SENT_TEXTS: Final = (
    "cannot switch to state",
    "connection is closed",
    "the underlying connection is closed",
)


class Pool:
    """At most `size` connections; the one that was used last is lent first.

    A call leaves nothing in its session, so nothing is reset. A connection is not lent again
    after a call that was cancelled or not answered.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect = connect
        self._room = asyncio.Semaphore(size)
        self._idle: list[tuple[Connection, float]] = []  # with the loop's time of the return
        self._lent: set[Connection] = set()
        self._returned = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()
        self._doubted = 0.0  # those returned before this moment are asked, too
        self._loop = asyncio.get_running_loop()
        self._closed = False

    async def call(self, call: Callable[[Connection], Awaitable[T]]) -> T:
        """Lend a connection to one call, and return its answer."""
        async with self._room:
            connection = await self._take()
            self._lent.add(connection)
            try:
                answer = await call(connection)
            except BaseException as error:
                self._give_back(connection, sound=_is_sound(error))
                if isinstance(error, TimeoutError) or was_not_sent(error):
                    self._drop_idle()
                elif isinstance(error, asyncio.CancelledError):  # the caller waited no longer
                    self._doubted = self._loop.time()
                raise
            self._give_back(connection, sound=True)
            return answer

    async def close(self) -> None:
        """Close every connection; those in use get two seconds to be given back."""
        self._closed = True
        self._drop_idle()
        try:
            async with asyncio.timeout(_LAST_CALLS_SECONDS):
                while self._lent:
                    self._returned.clear()
                    await self._returned.wait()
        except TimeoutError:
            for connection in self._lent:
                connection.terminate()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _take(self) -> Connection:
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_closed():
                continue
            if self._is_trusted(connection, since) or await self._answers(connection):
                return connection
            self._drop_idle()
        return await self._connect()

    def _is_trusted(self, connection: Connection, since: float) -> bool:
        idle = self._loop.time() - since
        if since <= self._doubted or idle >= _TRUSTED_SECONDS:
            return False
        return idle < _FRESH_SECONDS or not _has_news(connection)

    async def _answers(self, connection: Connection) -> bool:
        try:
            await connection.execute("select 1", timeout=_ANSWER_SECONDS)
        except LOST:
            self._drop(connection)
            return False
        except BaseException:
            self._drop(connection)
            raise
        return True

    def _give_back(self, connection: Connection, *, sound: bool) -> None:
        self._lent.discard(connection)
        if self._closed:
            self._returned.set()
        if connection.is_closed():
            return
        if sound and not self._closed:
            self._idle.append((connection, self._loop.time()))
        else:
            self._drop(connection)

    def _drop_idle(self) -> None:
        """Close all idle connections: what silenced one has probably silenced the others."""
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        """Close a connection in the background: the server may not answer."""
        task = self._loop.create_task(close_connection(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _has_news(connection: Connection) -> bool:
    """Return True if something arrived that the event loop has not read: usually the end."""
    if not hasattr(select, "poll"):  # Windows
        return False
    transport: asyncio.Transport = connection._transport  # type: ignore[attr-defined]
    link = transport.get_extra_info("socket")
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def was_not_sent(error: BaseException) -> bool:
    """Return True if nothing of a call has reached the server: then it may be repeated."""
    return isinstance(error, NOT_SENT) and str(error).startswith(_NOT_SENT_TEXTS)


def _is_sound(error: BaseException) -> bool:
    """Return True if a connection can be used after a call that ended with this error."""
    if isinstance(error, asyncpg.PostgresError):
        return not isinstance(error, _BROKEN)
    # The driver could not encode a parameter: nothing was sent.
    return isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
