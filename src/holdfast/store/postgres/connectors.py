"""Connections of psycopg, SQLAlchemy and Django for the code of steps, and which one a kind is.

A synchronous library is called in the thread of the step, and never suspends there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from asyncpg import PostgresError

from holdfast.database.sessions import direct_question
from holdfast.store.port.transactions import ConnectionKind, Connector, OpenTransaction
from holdfast.store.postgres.asyncpg_connector import (
    ROLL_BACK_SECONDS,
    AsyncpgConnector,
    commit_in_one,
)
from holdfast.store.postgres.conninfo import conninfo
from holdfast.store.postgres.executing import result_of
from holdfast.store.postgres.open_transaction import (
    Cleaning,
    Place,
    Session,
    Typed,
    beginning,
    run_within,
)
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.run")

T = TypeVar("T")
S = TypeVar("S", bound=Session)

_SESSION: Final = "holdfast"  # what holds a connection, in SQLAlchemy's notes on it
_IDLE: Final = 0  # psycopg's status of a connection without a transaction


class _Room(Protocol):
    """How many connections may be lent at a time."""

    def acquire(self) -> object: ...
    def release(self) -> None: ...


class _Lending(Cleaning, Generic[S]):
    """Lends at most as many connections as `room` has places."""

    def __init__(self, place: Place, room: _Room) -> None:
        super().__init__(place)
        self._room = room

    async def within(
        self, use: Callable[[OpenTransaction], Awaitable[T]], isolation: str | None
    ) -> T:
        await result_of(self._room.acquire())
        try:
            with beginning(self.place):
                session = await self.take()
            try:
                return await run_within(session, use, isolation)
            finally:
                await self.give_back(session)
        finally:
            self._room.release()

    async def take(self) -> S:
        """Return an idle connection, or a new one."""
        raise NotImplementedError

    async def give_back(self, session: S) -> None:
        """Keep a connection that is in order, and drop any other."""
        raise NotImplementedError


class _Psycopg(Session):
    """A transaction on a connection of psycopg, in either way."""

    async def begin(self) -> None:
        self._block = self.connection.transaction()
        enter = getattr(self._block, "__aenter__", None) or self._block.__enter__
        await result_of(enter())

    def is_open(self) -> bool:
        return int(self.connection.info.transaction_status) != _IDLE

    def encoding(self) -> str:
        return _encoding(self.connection)

    async def finish(self) -> None:
        leave = getattr(self._block, "__aexit__", None) or self._block.__exit__
        await result_of(leave(None, None, None))

    async def roll_back(self) -> None:
        leave = getattr(self._block, "__aexit__", None) or self._block.__exit__
        await result_of(leave(RuntimeError, RuntimeError("rolled back"), None))


class _PsycopgConnector(_Lending[_Psycopg]):
    def __init__(self, place: Place, room: _Room, factory: Any) -> None:
        super().__init__(place, room)
        self._factory = factory
        self._given = conninfo(place.database.target)
        self._prepares = place.prepares
        self._idle: list[Any] = []
        self._closed = False  # a thread may give its connection back after that

    async def take(self) -> _Psycopg:
        while (connection := self._pop()) is not None:
            if not connection.closed and connection.info.transaction_status == _IDLE:
                return _Psycopg(self.place, connection)
            await result_of(connection.close())
        connection = await result_of(self._factory.connect(**self._given, autocommit=True))
        try:
            await result_of(connection.execute(_question(self.place, connection)))
        except BaseException:
            await result_of(connection.close())
            raise
        if not self._prepares:
            connection.prepare_threshold = None
        return _Psycopg(self.place, connection)

    async def give_back(self, session: _Psycopg) -> None:
        connection = session.connection
        in_order = not connection.closed and connection.info.transaction_status == _IDLE
        answered = session.committed or not session.sent
        if not self._closed and in_order and answered:
            self._idle.append(connection)
            return
        await result_of(connection.close())
        await self._close_idle()  # if one was lost, the others probably are, too

    async def close(self) -> None:
        """Close every connection that is not lent; the others when they come back."""
        self._closed = True
        await self._close_idle()

    async def _close_idle(self) -> None:
        while (connection := self._pop()) is not None:
            await result_of(connection.close())

    def _pop(self) -> Any:
        """Return the connection that was used last, None if none is idle: threads come here."""
        try:
            return self._idle.pop()
        except IndexError:
            return None


class _Sqlalchemy(Session):
    """A transaction on a connection of SQLAlchemy, which is also that of a session."""

    def __init__(self, place: Place, lent: Any, factory: Any) -> None:
        self._lent, self._is_session = lent, hasattr(factory, "flush")
        self._awaits = hasattr(lent, "sync_connection")
        connection = lent
        if self._is_session:
            # The transaction is holdfast's: a commit of the session only flushes.
            connection = factory(
                bind=lent, join_transaction_mode="rollback_only", expire_on_commit=False
            )
        super().__init__(place, connection)

    async def begin(self) -> None:
        self._transaction = await result_of(self._lent.begin())
        self._answered = self._ended_by_hand = False
        self._lent.info[_SESSION] = self

    def is_open(self) -> bool:
        active = bool(self._transaction.is_active) and bool(self._lent.in_transaction())
        return active and not self._ended_by_hand

    def encoding(self) -> str:
        lent = self._lent.sync_connection if self._awaits else self._lent
        return _encoding(lent.connection.driver_connection)

    def was_closed(self) -> bool:
        """Return True if its connection was closed before: SQLAlchemy begins by a statement."""
        return bool(self._lent.invalidated) and not self._answered

    def look(self, raw: Any) -> None:
        """After each statement, ask the library below: it knows of a `commit` in SQL."""
        self._answered = True
        if hasattr(raw, "is_in_transaction"):  # asyncpg
            is_open = raw.is_in_transaction()
        else:
            is_open = raw.info.transaction_status != _IDLE
        self._ended_by_hand = self._ended_by_hand or not is_open

    async def commit_with(self, expected: int, text: str, *values: Typed) -> int:
        """Commit in one message with asyncpg, if a statement was sent before.

        The library's note of the transaction is then taken back, so it sends no commit of its own.
        """
        if not self._awaits:
            return await super().commit_with(expected, text, *values)
        adapted: Any = self._lent.sync_connection.connection.dbapi_connection
        if adapted._transaction is None:
            return await super().commit_with(expected, text, *values)
        try:
            number = await commit_in_one(self, adapted.driver_connection, expected, text, *values)
        except PostgresError as error:
            raise self._as_of_library(error, adapted) from error
        adapted._transaction = None
        if hasattr(adapted, "_started"):  # before SQLAlchemy 2.1
            adapted._started = False
        await self.finish()
        return number

    def _as_of_library(self, error: Exception, adapted: Any) -> Exception:
        """Return the error that the library raises for one of the driver below it."""
        from sqlalchemy.exc import DBAPIError

        try:
            adapted._handle_exception(error)
        except Exception as translated:
            dialect = self._lent.dialect
            kind = dialect.loaded_dbapi.Error
            return DBAPIError.instance(None, None, translated, kind, dialect=dialect)
        return error

    async def finish(self) -> None:
        await result_of(self._transaction.commit())

    async def flush(self) -> None:
        """Send what a session has not sent yet."""
        if self._is_session:
            await result_of(self.connection.flush())

    async def isolate(self, isolation: str) -> None:
        """Set the isolation level, before any other statement."""
        from sqlalchemy import text

        await result_of(self._lent.execute(text(f"set transaction isolation level {isolation}")))

    async def roll_back(self) -> None:
        if not self._transaction.is_active:  # else SQLAlchemy warns
            return
        if not self._awaits:
            self._transaction.rollback()
            return
        try:
            async with asyncio.timeout(ROLL_BACK_SECONDS):
                await self._transaction.rollback()
        except TimeoutError:
            await self._lent.invalidate()  # else the pool waits for its answer once more
            raise

    async def end(self) -> None:
        """Return the connection to the engine's pool."""
        if self._is_session:
            await result_of(self.connection.close())
        await result_of(self._lent.close())


def _encoding(raw: Any) -> str:
    """Return in which encoding the server expects texts from a connection of a driver."""
    if hasattr(raw, "get_settings"):  # asyncpg
        return str(raw.get_settings().client_encoding)
    return str(raw.info.parameter_status("client_encoding"))


def _look(connection: Any, *_: object) -> None:
    connection.info[_SESSION].look(connection.connection.driver_connection)


class _SqlalchemyConnector(_Lending[_Sqlalchemy]):
    def __init__(self, place: Place, room: _Room, factory: Any, engine: Any) -> None:
        from sqlalchemy import event

        super().__init__(place, room)
        self._factory, self._engine = factory, engine
        event.listen(getattr(engine, "sync_engine", engine), "after_cursor_execute", _look)

    async def take(self) -> _Sqlalchemy:
        connection = await result_of(self._engine.connect())
        return _Sqlalchemy(self.place, connection, self._factory)

    async def give_back(self, session: _Sqlalchemy) -> None:
        await session.end()

    async def close(self) -> None:
        """Close the connections of the engine."""
        await result_of(self._engine.dispose())


class _Django(Session):
    """A transaction on the connection that Django has in this thread."""

    async def begin(self) -> None:
        from django.db import transaction

        self._block = transaction.atomic(using=self.connection.alias, durable=True)
        self._block.__enter__()
        self.connection.on_commit(self._note_commit)  # the first of them

    def _note_commit(self) -> None:
        self.committed = True

    def is_open(self) -> bool:
        raw = self.connection.connection
        return raw is not None and raw.info.transaction_status != _IDLE

    def encoding(self) -> str:
        return _encoding(self.connection.connection)

    async def finish(self) -> None:
        try:
            self._block.__exit__(None, None, None)
        except Exception:
            if not self.committed:
                raise
            logger.exception("a callback of on_commit failed: its transaction is committed")

    async def isolate(self, isolation: str) -> None:
        """Set the isolation level, before any other statement."""
        with self.connection.cursor() as cursor:
            cursor.execute(f"set transaction isolation level {isolation}")

    async def roll_back(self) -> None:
        if self.connection.in_atomic_block:
            self._block.__exit__(RuntimeError, RuntimeError("rolled back"), None)


class _DjangoConnector(_Lending[_Django]):
    async def take(self) -> _Django:
        from django.db import connections

        connection = connections["default"]
        connection.close_if_unusable_or_obsolete()
        if connection.connection is not None and not connection.is_usable():
            connection.close()  # the server has ended it, which a first statement would find
        return _Django(self.place, connection)

    async def give_back(self, session: _Django) -> None:
        """Leave the connection to its thread, as Django does."""
        session.connection.close_if_unusable_or_obsolete()

    async def close(self) -> None:
        """Do nothing: connections of Django belong to their threads."""


def make_connector(place: Place, kind: ConnectionKind, factory: type, size: int) -> Connector:
    """Return what lends connections of a kind. Raises ImportError without its library."""
    if kind == "asyncpg":
        return AsyncpgConnector(place, size)
    room: _Room = asyncio.Semaphore(size) if "async" in kind else threading.Semaphore(size)
    if kind == "django":
        return _DjangoConnector(place, room)
    if kind.startswith("psycopg"):
        return _PsycopgConnector(place, room, factory)
    return _SqlalchemyConnector(place, room, factory, _engine(place, kind, size))


def _question(place: Place, connection: Any) -> Any:
    """Return the statement that tells the session of psycopg when the server ends it."""
    keepalive = place.database.target.parameters.keepalive
    return direct_question(connection.info.backend_pid, keepalive)


def _engine(place: Place, kind: ConnectionKind, size: int) -> Any:
    """Return an engine of SQLAlchemy whose connections are opened as the store's are."""
    if kind == "sqlalchemy-async":
        from sqlalchemy.ext.asyncio import create_async_engine

        cached = "" if place.prepares else "?prepared_statement_cache_size=0"
        return create_async_engine(
            f"postgresql+asyncpg://{cached}",
            async_creator=place.database.connect_unlimited,
            pool_size=size,
        )
    import psycopg
    from sqlalchemy import create_engine

    given, threshold = conninfo(place.database.target), 5 if place.prepares else None

    def connect() -> object:
        connection = psycopg.connect(**given, prepare_threshold=threshold, autocommit=True)
        try:
            connection.execute(_question(place, connection))
            connection.autocommit = False
        except BaseException:
            connection.close()
            raise
        return connection

    return create_engine("postgresql+psycopg://", creator=connect, pool_size=size)
