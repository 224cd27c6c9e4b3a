"""A store over Django's own connection: what it writes is part of Django's transaction."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import psycopg
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import ProgrammingError, close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.types.string import TextLoader

from holdfast.errors import SchemaMissing
from holdfast.store.port import Store
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.store import PostgresParts

T = TypeVar("T")

# What Django adds to the parameters of libpq, and what the encoding of a worker is anyway.
_OF_DJANGO: Final = frozenset(
    {"client_encoding", "context", "cursor_factory", "dbname", "prepare_threshold"}
)


def find_connection(alias: str) -> BaseDatabaseWrapper:
    """Return Django's connection of this thread, open.

    Raises ImproperlyConfigured for a database that is not PostgreSQL with psycopg 3, and
    TransactionManagementError, as the ORM does, if its transaction can only be rolled back.
    """
    connection = connections[alias]
    if problem := problem_of(connection):
        raise ImproperlyConfigured(problem)
    connection.ensure_connection()
    connection.validate_no_broken_transaction()
    return connection


def problem_of(connection: BaseDatabaseWrapper) -> str | None:
    """Return why tasks cannot be kept in this database, None if they can."""
    if connection.vendor != "postgresql":
        return (
            f"the database {connection.alias!r} is {connection.display_name}, but holdfast keeps "
            "tasks in PostgreSQL: change DATABASES (on a laptop to holdfast.django.settings."
            'database()), or name the alias of another in TASKS: "OPTIONS": {"database": …}'
        )
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return None if is_psycopg3 else "tasks of holdfast need psycopg 3: `pip install psycopg`"


def database_url(alias: str) -> str:
    """Return the URL of a database of Django, for programs with connections of their own.

    Raises ImproperlyConfigured as `find_connection` does.
    """
    connection = connections[alias]
    if problem := problem_of(connection):
        raise ImproperlyConfigured(problem)
    parameters = connection.get_connection_params()
    given = {
        name: value
        for name, value in parameters.items()
        if isinstance(value, str | int) and name not in _OF_DJANGO
    }
    given["dbname"] = parameters.get("dbname") or ""
    role = connection.settings_dict["OPTIONS"].get("assume_role")
    if role is not None:
        given["options"] = f"{given.get('options', '')} -c role={role}".strip()
    return f"postgresql://?{urlencode({name: value for name, value in given.items() if value})}"


_async_users: Final = set[object]()


@asynccontextmanager
async def async_connections() -> AsyncGenerator[None]:
    """Surround asynchronous code that uses the ORM: close connections that are old, or were lost.

    All such code of a process has one thread, and its connections. So while some of it runs, only
    a lost connection is closed: another may be in the middle of what it reads.
    """
    _async_users.add(user := object())
    try:
        await sync_to_async(_close_connections)(user)
        yield
    finally:
        _async_users.discard(user)
        # What is cancelled does not wait for the thread, which a query may hold.
        if not isinstance(sys.exc_info()[1], asyncio.CancelledError):
            await sync_to_async(_close_connections)(user)


def _close_connections(user: object) -> None:
    if _async_users <= {user}:
        close_old_connections()
        return
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred and not connection.is_usable():
            connection.close()


def store_on(alias: str, schema: str) -> Store:
    """Return a store whose calls are made over Django's connection of the calling thread.

    Its calls never suspend: `finish` runs them. It listens to nothing and starts nothing.
    """
    return PostgresParts(_Borrowed(alias, schema))


class _Row(tuple[Any, ...]):
    """A row whose values are found by place and by the name of their column."""

    names: Sequence[str]

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(self.names.index(at) if isinstance(at, str) else at)


def _rows(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], _Row]:
    names = [column.name for column in cursor.description or ()]
    return type("_Row", (_Row,), {"names": names})


class _Borrowed(Database):
    """Makes calls over the connection that Django has in this thread."""

    def __init__(self, alias: str, schema: str) -> None:
        super().__init__("", schema=schema, connections=0, prepare=None)
        self._alias = alias

    async def open(self) -> None:
        """Do nothing: Django opens its connections."""

    async def close(self) -> None:
        """Do nothing: Django closes its connections."""

    async def _call(self, call: Callable[[Any], Awaitable[T]]) -> T:
        connection = find_connection(self._alias)
        with told_if_missing(connection, self.schema):
            return await call(_Calls(connection.connection))


@contextmanager
def told_if_missing(connection: BaseDatabaseWrapper, schema: str) -> Generator[None]:
    """Raise errors as Django's own, and SchemaMissing if holdfast's schema is not there."""
    try:
        with connection.wrap_database_errors:
            yield
    except ProgrammingError as error:
        missing = (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction)
        if isinstance(error.__cause__, missing):
            raise SchemaMissing(
                f"the database has no schema {schema!r} of this release of holdfast: run "
                "`manage.py migrate`, or `manage.py holdfast migrate`"
            ) from error
        raise


class _Calls:
    """The two methods of a connection that a store uses, over one of psycopg."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def fetch(self, text: str, *values: object, timeout: float) -> list[_Row]:
        cursor = psycopg.RawCursor(self._connection, row_factory=_rows)
        for kind in ("json", "jsonb"):  # as text: what holdfast stores, holdfast decodes
            cursor.adapters.register_loader(kind, TextLoader)
        with cursor:
            return cursor.execute(text.encode(), values).fetchall()

    async def fetchrow(self, text: str, *values: object, timeout: float) -> _Row | None:
        return next(iter(await self.fetch(text, *values, timeout=timeout)), None)
