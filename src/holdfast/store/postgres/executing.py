"""Statements on a connection that others have opened, of any library.

A connection's library is known by the module of its class, so a library that is not used is not
imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, TypeVar, cast

from holdfast.errors import ConfigurationError
from holdfast.store.postgres.starts import Statement

T = TypeVar("T")

Rows: TypeAlias = Sequence[Sequence[object]]
Mark: TypeAlias = Callable[[int], str]
Write: TypeAlias = Callable[[Mark], Statement]
Execute: TypeAlias = Callable[[object, Write], Awaitable[Rows]]


class _Asyncpg(Protocol):
    async def fetch(self, query: str, *args: object) -> Rows: ...


class _Cursor(Protocol):
    def execute(self, query: str, params: Sequence[object]) -> object: ...
    def fetchall(self) -> Rows | Awaitable[Rows]: ...


class _Psycopg(Protocol):
    def cursor(self, *, row_factory: Callable[[object], type[tuple[object, ...]]]) -> _Cursor: ...


class _Django(Protocol):
    def cursor(self) -> AbstractContextManager[_Cursor]: ...


class _Result(Protocol):
    def all(self) -> Rows: ...


class _SQLAlchemy(Protocol):
    def execute(
        self, statement: object, parameters: Mapping[str, object]
    ) -> _Result | Awaitable[_Result]: ...


async def _asyncpg(connection: object, write: Write) -> Rows:
    statement = write("${}".format)
    return await cast(_Asyncpg, connection).fetch(statement.text, *statement.arguments)


async def _psycopg(connection: object, write: Write) -> Rows:
    # Rows as tuples, whatever row factory the connection has.
    cursor = cast(_Psycopg, connection).cursor(row_factory=lambda _: tuple)
    await result_of(cursor.execute(*write(lambda _: "%s")))
    return await result_of(cursor.fetchall())


async def _django(connection: object, write: Write) -> Rows:
    with cast(_Django, connection).cursor() as cursor:
        cursor.execute(*write(lambda _: "%s"))
        return cast(Rows, cursor.fetchall())


async def _sqlalchemy(connection: object, write: Write) -> Rows:
    from sqlalchemy import text

    statement = write(":p{}".format)
    parameters = {f"p{n}": argument for n, argument in enumerate(statement.arguments, 1)}
    found = cast(_SQLAlchemy, connection).execute(text(statement.text), parameters)
    return (await result_of(found)).all()


_EXECUTORS: Mapping[str, Execute] = {
    "asyncpg": _asyncpg,
    "psycopg": _psycopg,
    "sqlalchemy": _sqlalchemy,
    "django": _django,
}


# Pools of asyncpg and psycopg, engines of SQLAlchemy. Its sessionmaker cannot execute.
_MAKES_CONNECTIONS = ("acquire", "getconn", "dispose")


def executor(connection: object) -> Execute:
    """Return what executes statements on the caller's connection. Raises ConfigurationError."""
    kind = type(connection)
    modules = [each.__module__.partition(".")[0] for each in kind.__mro__]
    execute = next((_EXECUTORS[each] for each in modules if each in _EXECUTORS), None)
    maker = execute not in (None, _django) and not hasattr(connection, "execute")
    if maker or any(hasattr(connection, name) for name in _MAKES_CONNECTIONS):
        raise ConfigurationError(
            f"{kind.__module__}.{kind.__qualname__} makes connections and has no transaction of "
            "yours: pass the connection or the session in which your transaction is open"
        )
    if execute is not None:
        return execute
    raise ConfigurationError(
        f"{kind.__module__}.{kind.__qualname__} is not a connection that a start can use: pass a "
        "connection of asyncpg or psycopg, a connection or session of SQLAlchemy, or Django's"
    )


def is_asynchronous(connection: object) -> bool:
    """Return True if a connection needs an event loop."""
    call = getattr(connection, "execute", None)
    return inspect.iscoroutinefunction(call) or executor(connection) is _asyncpg


async def result_of(value: T | Awaitable[T]) -> T:
    """Return the result of a call of a synchronous or an asynchronous library."""
    return cast(T, await value if inspect.isawaitable(value) else value)
