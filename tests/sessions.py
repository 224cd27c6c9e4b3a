"""Sessions that the next test uses again: a new one reads and plans every function first.

Tests of one process share an event loop, to which their connections belong, and the heartbeats of
their workers, which have threads, a few others. What a test closes is closed for it, as ever: its
connection, and the loop, with all that still ran or waited there. But the session behind a
connection to a database that is used again stays open, as new.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from holdfast.database.connection import LOST

# Idle sessions of this process. A server that is not of the tests takes a hundred of all.
MOST = 16 if os.environ.get("HOLDFAST_TEST_DATABASE_URL") else 32
# Besides, so many loops that other threads have one after another keep two each.
THREADS = MOST // 8
# `discard all` without `discard plans`, and without the statements that the driver keeps prepared.
AS_NEW = """
close all; set session authorization default; reset all; unlisten *;
select pg_advisory_unlock_all(); discard temp; discard sequences;
"""
# Fails if there are other statements than those.
ONLY = "select 1 / (count(*) = {})::int from pg_prepared_statements; "


class Session(NamedTuple):
    """What a connection of the driver stands on."""

    key: str  # the arguments of the connection
    protocol: Any
    transport: Any
    addr: Any
    config: Any
    params: Any
    statements: list[tuple[Any, Any]]  # that it keeps prepared, each with its query

    @property
    def socket(self) -> int:
        return self.transport.get_extra_info("socket").fileno()

    @property
    def is_alive(self) -> bool:
        """True if the server has not ended it."""
        if not self.protocol.is_connected() or self.transport.is_closing():
            return False
        return _is_silent(self.socket)


def _is_silent(socket: int) -> bool:
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return not poll.poll(0)


class SharedLoop(asyncio.SelectorEventLoop):
    """A loop for one test after another, each of which closes it with `asyncio.Runner`."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self.idle: list[Session] = []  # the last used one is the last
        self.most = most
        self.is_lent = False

    def close(self) -> None:
        """Forget all but idle sessions; tasks have been cancelled before."""
        self.is_lent = False
        for handle in (*self._ready, *self._scheduled):
            handle.cancel()
        self._ready.clear()
        self._scheduled.clear()
        for number in list(self._signal_handlers):
            self.remove_signal_handler(number)
        kept = {self._ssock.fileno(), *(session.socket for session in self.idle)}
        for file in [key.fd for key in self._selector.get_map().values() if key.fd not in kept]:
            self._remove_reader(file)
            self._remove_writer(file)
        self.set_exception_handler(None)
        self.set_task_factory(None)
        self._default_executor = None
        self._asyncgens_shutdown_called = self._executor_shutdown_called = False

    def take(self, key: str) -> Session | None:
        """Return an idle session for a connection with these arguments."""
        for session in reversed(self.idle):
            if session.key == key:
                self.idle.remove(session)
                if session.is_alive:
                    return session
                session.protocol.abort()
        return None

    def drop(self, database: str | None = None) -> None:
        """End the idle sessions of a database, or all."""
        dropped = [each for each in self.idle if database in (None, each.params.database)]
        for session in dropped:
            self.idle.remove(session)
            session.protocol.abort()
        if dropped and not any(each.is_running() for each in _loops):
            self.run_until_complete(asyncio.sleep(0))

    def end(self) -> None:
        """Close it, after the last test."""
        self.drop()
        super().close()


_loops: list[SharedLoop] = []  # that of the main thread, and those of others
_choice = threading.Lock()
_reused: dict[str, object] = {}  # the address of each database that is used again
_by_hand: dict[str, list[psycopg.Connection[Any]]] = {}  # idle, of each database
_keys: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # of open connections
_connect, _close = asyncpg.connect, asyncpg.Connection.close
_set_type_codec = asyncpg.Connection.set_type_codec


def shared_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of this thread's until it is closed; a new one for who asks meanwhile."""
    if not _loops:
        _loops.append(SharedLoop())
        asyncpg.connect, asyncpg.Connection.close = connect, close
        asyncpg.Connection.set_type_codec = set_type_codec
    is_main = threading.current_thread() is threading.main_thread()
    with _choice:
        others = _loops[1:]
        if not is_main and len(others) < THREADS and all(each.is_lent for each in others):
            _loops.append(SharedLoop(most=2))
        for loop in _loops[:1] if is_main else _loops[1:]:
            if not loop.is_lent:
                loop.is_lent = True
                return loop
    return asyncio.new_event_loop()


def end_loop() -> None:
    """End the loops of this process, but for those of threads that a test has left."""
    while _loops:
        if not (loop := _loops.pop()).is_running():
            loop.end()


def keep(url: str) -> None:
    """Keep the sessions of a database from now on, unless they are behind a proxy."""
    parts = conninfo_to_dict(url)
    host, port = str(parts.get("host", "")), int(parts.get("port", 5432))
    place = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
    _reused[str(parts["dbname"])] = place


def idle(database: str) -> list[int]:
    """Return the process ids of a database's idle sessions."""
    every = [session for loop in _loops for session in loop.idle]
    of_driver = [each.protocol for each in every if each.params.database == database]
    by_hand = [each.info.backend_pid for each in _by_hand.get(database, ())]
    return [*by_hand, *(protocol.get_server_pid() for protocol in of_driver)]


def forget(database: str) -> None:
    """End a database's idle sessions, and keep none from now on."""
    _reused.pop(database, None)
    for connection in _by_hand.pop(database, ()):
        connection.close()
    for loop in _loops:
        loop.drop(database)


@contextmanager
def by_hand(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Lend a person at psql a session; each of its statements is a transaction.

    It is as new, but for statements that are prepared.
    """
    database = str(conninfo_to_dict(url)["dbname"])
    idle = _by_hand.setdefault(database, [])
    while idle and not _is_silent(idle[-1].fileno()):
        idle.pop().close()
    connection = idle.pop() if idle else psycopg.connect(url, autocommit=True)
    try:
        yield connection
    finally:
        if database in _reused and _is_left_as_new(connection):
            idle.append(connection)
        else:
            connection.close()


def _is_left_as_new(connection: psycopg.Connection[Any]) -> bool:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    try:
        connection.execute(AS_NEW.encode())
    except psycopg.Error:
        return False
    return True


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Let the tests of a folder whose conftest.py has this share the loop."""
    if item.get_closest_marker("fresh_database"):
        return {"own": asyncio.new_event_loop}
    return {"shared": shared_loop}


@pytest.fixture(autouse=True)
def runs_share_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `asyncio.run` use the shared loop in the tests of a folder whose conftest.py has this."""
    monkeypatch.setattr(asyncio.events, "new_event_loop", shared_loop)


async def connect(*args: Any, **options: Any) -> asyncpg.Connection:
    """Connect as the driver does, by an idle session if there is one."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SharedLoop):
        return await _connect(*args, **options)
    key = repr((args, sorted(options.items(), key=lambda option: option[0])))
    if session := loop.take(key):
        _, protocol, transport, *others, statements = session
        kind = options.get("connection_class", asyncpg.Connection)
        connection = kind(protocol, transport, loop, *others)
        protocol.set_connection(connection)
        for query, statement in statements:
            connection._stmt_cache.put(query, statement)
    else:
        connection = await _connect(*args, **options)
    _keys[connection] = key
    return connection


async def close(self: Any, *, timeout: float | None = None) -> None:
    """Close a connection as the driver does, but keep a session that can be made as new."""
    if not await _is_as_new(self):
        with suppress(OSError):  # the session has ended in this moment
            return await _close(self, timeout=timeout)
        return self.terminate()
    parts = (self._protocol, self._transport, self._addr, self._config, self._params)
    self._loop.idle.append(Session(_keys.pop(self), *parts, _take_statements(self)))
    self._aborted, self._protocol = True, None
    self._cleanup()
    if len(self._loop.idle) > self._loop.most:
        self._loop.idle.pop(0).protocol.abort()
    return None


async def set_type_codec(self: Any, *args: Any, **options: Any) -> None:
    """Set a codec as the driver does; nothing takes it from the session again."""
    _keys.pop(self, None)
    await _set_type_codec(self, *args, **options)


async def _is_as_new(connection: Any) -> bool:
    if connection not in _keys or connection.is_closed():
        return False
    if (
        _reused.get(connection._params.database) != connection._addr
        or connection._protocol.is_in_transaction()
        or connection._protocol._is_cancelling()
    ):
        return False
    protocol, kept = connection._protocol, len(connection._stmt_cache)
    try:
        with suppress(asyncpg.DivisionByZeroError):
            await protocol.query(ONLY.format(kept) + AS_NEW, 2.0)
            return True
        connection._mark_stmts_as_closed()
        await protocol.query("deallocate all;" + AS_NEW, 2.0)
    except (*LOST, TimeoutError):
        return False
    return True


def _take_statements(connection: Any) -> list[tuple[Any, Any]]:
    """Take the prepared statements from a connection, which would mark them as closed."""
    cache = connection._stmt_cache
    entries = dict(cache._entries)
    for entry in entries.values():
        cache._clear_entry_callback(entry)
    cache._entries.clear()
    return [(query, entry._statement) for query, entry in entries.items()]
