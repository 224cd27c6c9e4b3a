"""Call the functions of a schema over a pool of connections."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg
import msgspec

from holdfast.database.connection import LOST, close_connection, is_direct, open_connection
from holdfast.database.scripts import check_schema_name
from holdfast.database.urls import Target, read_url, redact
from holdfast.store.port.shards import known_shards
from holdfast.store.postgres.errors import FOREIGN, is_sound, translate, was_not_sent, was_undone
from holdfast.store.postgres.packing import LEAST, Packing, call_text, pack
from holdfast.store.shared_calls import FIRST_PAUSE, MAX_TRIES, lock_millis
from holdfast.types import Notice
from holdfast.values.loggers import get_logger

if TYPE_CHECKING:
    from holdfast.database.connection import Connection

T = TypeVar("T")

logger = get_logger("holdfast.database")

# No call takes this long: without an answer by then, its connection is dead or hangs.
_CALL_SECONDS: Final = 20.0
QUERY_SECONDS: Final = _CALL_SECONDS
_SLOWEST: Final = 256 * 1024  # bytes a second; a call over a slower connection is cut off

_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
# A connection that was idle for longer is tested before use: a firewall may have forgotten it.
_TRUSTED_SECONDS: Final = 10.0
_FRESH_SECONDS: Final = 0.001  # after so short a pause a connection need not be tested
_ANSWER_SECONDS: Final = 2.0
_LAST_CALLS_SECONDS: Final = 2.0


class Database:
    """Calls the functions of a schema over a pool of connections.

    With `prepare` None, statements are prepared by name unless a pooler is in between: a pooler
    may give the name to another session. With `tells`, transactions may send the notices of their
    changes. A call that returns rows may take `query_seconds`. The `checks` are given a connection
    and the schema, and refuse databases that cannot be worked with.
    """

    _tries = MAX_TRIES  # of a call that the server undoes each time

    tell: str | None  # what calls are given that tell, see _tell in core/notify.sql
    tell_starts: str | None  # the same for calls whose notices of work are all of starts

    def __init__(
        self,
        url: str,
        *,
        schema: str,
        connections: int,
        prepare: bool | None,
        checks: Sequence[Callable[..., Awaitable[None]]] = (),
        listen_url: str | None = None,
        tells: bool = False,
        query_seconds: float = QUERY_SECONDS,
    ) -> None:
        self.url, self.listen_url = url, listen_url
        self.schema = check_schema_name(schema)
        self.tell = self.tell_starts = self.schema if tells else None
        self.connections, self._checks = connections, checks
        self.query_seconds = query_seconds
        self._prepare = prepare
        self._pool: Pool | None = None

    async def open(self) -> None:
        """Connect, and refuse a schema that this release cannot work with."""
        if self._pool is not None:
            return
        self.read_url()
        pool = Pool(self._connect, self.connections)
        try:
            with translated():
                for check in self._checks:
                    await pool.call(partial(check, schema=self.schema))
        except BaseException:
            await pool.close()
            raise
        self._pool = pool

    def read_url(self) -> None:
        """Read the URL, without connecting. Raises InvalidDatabaseURL."""
        self._target = read_url(self.url)
        if self._prepare is None:
            self._prepare = self._target.parameters.prepare

    async def close(self) -> None:
        """Close every connection of the pool."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def rows(
        self, function: str, *arguments: object, patience: int = 1, packing: Packing = ()
    ) -> list[asyncpg.Record]:
        """Call a function and return its rows; `patience` multiplies the time that it may take."""
        text, values = self._statement(function, arguments, packing)
        seconds = patience * self.query_seconds
        try:  # not translated(), which is slower: every start comes through here
            return await self._call(
                lambda connection: connection.fetch(text, *values, timeout=seconds)
            )
        except FOREIGN as error:
            raise translate(error, function) from error

    async def row(self, function: str, *arguments: object) -> asyncpg.Record:
        """Call a function and return its only row."""
        with translated(function):
            return await self.row_untranslated(function, arguments)

    async def value(self, function: str, *arguments: object) -> Any:
        """Call a function and return the only value of its only row."""
        return (await self.row(function, *arguments))[0]

    async def identity(self) -> str:
        """Return what distinguishes this schema from those of other databases."""
        text = (  # a moment as JSON is written in one way, whatever DateStyle the role has
            "select current_database() || ' ' || replace("
            "to_json(min(applied_at) at time zone 'UTC') #>> '{}', 'T', ' ') "
            f'from "{self.schema}".schema_migrations'
        )
        with translated():
            made = await self._call(lambda connection: connection.fetchval(text))
        return f"{self.schema} {made}"

    async def row_untranslated(
        self, function: str, arguments: Sequence[object], *, weight: int = 0, packing: Packing = ()
    ) -> asyncpg.Record:
        """Call a function and return its only row; errors are the driver's own.

        `weight` is the size of the arguments: a large call gets the time of a slow connection.
        """
        text, arguments = self._statement(function, arguments, packing)
        seconds = call_seconds(weight)
        row = await self._call(
            lambda connection: connection.fetchrow(text, *arguments, timeout=seconds)
        )
        assert row is not None, "the function returns exactly one row"
        return row

    def _statement(
        self, function: str, arguments: Sequence[Any], packing: Packing
    ) -> tuple[str, Sequence[object]]:
        """Return a call and its arguments, with arrays as text if they are long."""
        packed = None
        if packing and len(arguments[packing[0][0]]) >= LEAST:
            packed = pack(arguments, packing)
        count = len(packed or arguments)
        limits = lock_millis.get(), known_shards.get()
        text = call_text(self.schema, function, count, packing if packed else (), *limits)
        return text, packed or arguments

    async def _call(self, call: Callable[[Connection], Awaitable[T]]) -> T:
        """Make a call; repeat it if it was not sent, or if the server has undone it.

        Each call is one statement, and a transaction of its own: whatever it does, it may be
        repeated then.
        """
        sent, undone = True, 0
        while True:
            try:
                return await self._open_pool().call(call)
            except FOREIGN as error:
                if sent and was_not_sent(error):
                    sent = False  # over another connection, at once
                    continue
                undone += 1
                if undone >= self._tries or not was_undone(error):
                    raise
                await asyncio.sleep(FIRST_PAUSE * 2**undone)

    def _open_pool(self) -> Pool:
        if self._pool is None:
            raise RuntimeError("the store is not open: `await store.open()` first")
        return self._pool

    @property
    def target(self) -> Target:
        """What the URL says; the store is open."""
        return self._target

    @property
    def prepares(self) -> bool:
        """True if statements may be prepared by name, as far as is known."""
        return self._prepare is not False

    async def connect_unlimited(self) -> Connection:
        """Open a connection whose statements may take any time, for the code of others.

        The server ends its session if the transaction of that code is idle for long.
        """
        return await self._connect(limited=False)

    async def _connect(self, *, limited: bool = True) -> Connection:
        """Open a connection for the pool; the first one shows whether a pooler is in between."""
        prepare = self._prepare is not False
        connection = await open_connection(
            self._target, call_seconds=_CALL_SECONDS if limited else None, prepare=prepare
        )
        try:
            keepalive = None if limited else self._target.parameters.keepalive
            direct = await is_direct(connection, keepalive)
            if direct or not prepare or self._prepare:  # another call may have found the pooler
                return connection
        except BaseException:
            connection.terminate()
            raise
        await close_connection(connection)
        logger.info(
            "%s is a connection pooler: no statements are prepared", redact(self._target.url)
        )
        self._prepare = False
        return await self._connect(limited=limited)


class Part:
    """The base of the store's parts: the database that each of them calls.

    What a method does is said in the port; here only what is PostgreSQL's own.
    """

    def __init__(self, database: Database) -> None:
        self._database = database


def call_seconds(weight: int) -> float:
    """Return after how many seconds a call with so many bytes of arguments is cut off.

    >>> call_seconds(0), call_seconds(16 * 1024 * 1024)
    (20.0, 84.0)
    """
    return _CALL_SECONDS + weight / _SLOWEST


def read_notices(pairs: Iterable[Sequence[str]] | None) -> list[Notice]:
    """Return the wake-ups of an answer, each once: a listener that looks once sees everything."""
    return [Notice(topic, payload) for topic, payload in dict.fromkeys(map(tuple, pairs or ()))]


def or_none(values: list[object]) -> list[object] | None:
    """Return an array; None for one of nulls."""
    return None if values.count(None) == len(values) else values


def columns(values: Sequence[object], *names: str) -> list[list[Any]]:
    """Return the fields of these names of all values, each as an array for a function."""
    return [[*map(attrgetter(name), values)] for name in names]


def read_headers(text: str | None) -> dict[str, str] | None:
    """Return a run's headers; {} for what an early release stored unchecked and cannot be read."""
    if text is None:
        return None
    try:
        return _decode_headers(text)
    except (msgspec.MsgspecError, RecursionError):
        return {}


@contextmanager
def translated(function: str = "") -> Generator[None]:
    """Raise errors of the driver and of the server as errors of holdfast, see `translate`."""
    try:
        yield
    except FOREIGN as error:
        raise translate(error, function) from error


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
        self._doubted = 0.0  # connections returned before this moment are tested, too
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
                self._give_back(connection, sound=is_sound(error))
                if isinstance(error, TimeoutError) or was_not_sent(error):
                    self.drop_idle()
                elif isinstance(error, asyncio.CancelledError):  # the caller stopped waiting
                    self._doubted = self._loop.time()
                raise
            self._give_back(connection, sound=True)
            return answer

    async def close(self) -> None:
        """Close every connection; those in use get two seconds to be given back."""
        self._closed = True
        self.drop_idle()
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
            self.drop_idle()
        return await self._connect()

    def _is_trusted(self, connection: Connection, since: float) -> bool:
        idle = self._loop.time() - since
        if since <= self._doubted or idle >= _TRUSTED_SECONDS:
            return False
        return idle < _FRESH_SECONDS or not _has_unread(connection)

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

    def drop_idle(self) -> None:
        """Close all idle connections: if one is dead, the others probably are, too."""
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        """Close a connection in the background: the server may not answer."""
        task = self._loop.create_task(close_connection(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _has_unread(connection: Connection) -> bool:
    """Return True if something arrived that the event loop has not read: usually the end."""
    if not hasattr(select, "poll"):  # Windows
        return False
    transport: asyncio.Transport = connection._transport  # type: ignore[attr-defined]
    link = transport.get_extra_info("socket")
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    return bool(poll.poll(0))
