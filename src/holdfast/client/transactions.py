"""Calls within the caller's own transaction, on a connection of any of three libraries.

A connection's library is known by the module of its class, so a library that the caller does not
use is not imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

from holdfast.database.scripts import check_schema_name
from holdfast.errors import ConfigurationError
from holdfast.store.port import WORK_TOPIC, messages_topic
from holdfast.store.postgres import (
    Statement,
    ack_statement,
    send_statement,
    start_statement,
)
from holdfast.store.postgres.listening import channel
from holdfast.types import NewMessage, NewRun, Notice, Receipt, RuleKind, StartedRun, Status

T = TypeVar("T")

Rows: TypeAlias = Sequence[Sequence[object]]
Mark: TypeAlias = Callable[[int], str]
Write: TypeAlias = Callable[[Mark], Statement]
Execute: TypeAlias = Callable[[object, Write], Awaitable[Rows]]


async def start_within(
    connection: object, runs: Sequence[NewRun], *, schema: str, notify: bool
) -> list[StartedRun]:
    """Start runs on the caller's connection; they exist once its transaction commits.

    Awaits only the connection, so with a synchronous one it never suspends. Raises
    ConfigurationError for an unknown kind of connection, and what the connection's library
    raises.
    """
    if not runs:
        return []
    execute = executor(connection)

    def start(mark: Mark) -> Statement:
        return start_statement(runs, schema=schema, placeholder=mark)

    rows = await execute(connection, start)
    started = [
        StartedRun(
            UUID(str(run_id)),
            bool(created),
            cast("Status | None", status),
            cast("RuleKind | None", refused),
            cast("int | None", until),
        )
        for run_id, created, status, refused, until in rows
    ]
    if notify:
        created = {run.queue for run, answer in zip(runs, started, strict=True) if answer.created}
        await notify_within(connection, schema, [Notice(WORK_TOPIC, each) for each in created])
    return started


async def notify_within(connection: object, schema: str, notices: Iterable[Notice]) -> None:
    """Send wake-ups when the transaction of the caller's connection commits."""
    execute = executor(connection)
    for notice in sorted(set(notices), key=lambda each: (each.topic, each.payload)):
        await execute(connection, partial(_notify, channel(schema, notice.topic), notice.payload))


async def send_within(
    connection: object, queue: str, messages: Sequence[NewMessage], *, schema: str, notify: bool
) -> list[int]:
    """Send messages on the caller's connection; they exist once its transaction commits.

    Raises what `start_within` raises.
    """
    if not messages:
        return []
    execute = executor(connection)

    def send(mark: Mark) -> Statement:
        return send_statement(queue, messages, schema=schema, placeholder=mark)

    ids = [int(str(message_id)) for (message_id,) in await execute(connection, send)]
    if notify:
        await notify_within(connection, schema, [Notice(messages_topic(queue), queue)])
    return ids


async def ack_within(connection: object, receipts: Sequence[Receipt], *, schema: str) -> list[bool]:
    """Acknowledge messages on the caller's connection, once its transaction commits.

    Raises what `start_within` raises.
    """
    if not receipts:
        return []

    def ack(mark: Mark) -> Statement:
        return ack_statement(receipts, schema=schema, placeholder=mark)

    return [bool(acked) for (acked,) in await executor(connection)(connection, ack)]


async def apps_within(connection: object, schema: str, workflow: str) -> list[str]:
    """Return the apps that have a workflow of this name, as the caller's connection sees them."""

    def find(mark: Mark) -> Statement:
        check_schema_name(schema)
        name = f"cast({mark(1)} as text)"
        return Statement(f'select unnest("{schema}".apps_with({name}))', (workflow,))

    return [str(app) for (app,) in await executor(connection)(connection, find)]


def is_asynchronous(connection: object) -> bool:
    """Return True if a connection needs an event loop."""
    call = getattr(connection, "execute", None)
    return inspect.iscoroutinefunction(call) or executor(connection) is _asyncpg


def _notify(name: str, payload: str, mark: Mark) -> Statement:
    text = f"select pg_notify(cast({mark(1)} as text), cast({mark(2)} as text))"
    return Statement(text, (name, payload))


class _Asyncpg(Protocol):
    async def fetch(self, query: str, *args: object) -> Rows: ...


class _Cursor(Protocol):
    def execute(self, query: str, params: Sequence[object]) -> object: ...
    def fetchall(self) -> Rows | Awaitable[Rows]: ...


class _Psycopg(Protocol):
    def cursor(self, *, row_factory: Callable[[object], type[tuple[object, ...]]]) -> _Cursor: ...


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
    await _result_of(cursor.execute(*write(lambda _: "%s")))
    return await _result_of(cursor.fetchall())


async def _sqlalchemy(connection: object, write: Write) -> Rows:
    from sqlalchemy import text

    statement = write(":p{}".format)
    parameters = {f"p{n}": argument for n, argument in enumerate(statement.arguments, 1)}
    found = cast(_SQLAlchemy, connection).execute(text(statement.text), parameters)
    return (await _result_of(found)).all()


_EXECUTORS: Mapping[str, Execute] = {
    "asyncpg": _asyncpg,
    "psycopg": _psycopg,
    "sqlalchemy": _sqlalchemy,
}


# Pools of asyncpg and psycopg, engines of SQLAlchemy. Its sessionmaker cannot execute.
_MAKES_CONNECTIONS = ("acquire", "getconn", "dispose")


def executor(connection: object) -> Execute:
    """Return what executes statements on the caller's connection. Raises ConfigurationError."""
    kind = type(connection)
    modules = [each.__module__.partition(".")[0] for each in kind.__mro__]
    execute = next((_EXECUTORS[each] for each in modules if each in _EXECUTORS), None)
    maker = execute is not None and not hasattr(connection, "execute")
    if maker or any(hasattr(connection, name) for name in _MAKES_CONNECTIONS):
        raise ConfigurationError(
            f"{kind.__module__}.{kind.__qualname__} makes connections and has no transaction of "
            "yours: pass the connection or the session in which your transaction is open"
        )
    if execute is not None:
        return execute
    raise ConfigurationError(
        f"{kind.__module__}.{kind.__qualname__} is not a connection that a start can use: pass a "
        "connection of asyncpg or psycopg, or a connection or session of SQLAlchemy"
    )


async def _result_of(value: T | Awaitable[T]) -> T:
    """Return the result of a call of a synchronous or an asynchronous library."""
    return cast(T, await value if inspect.isawaitable(value) else value)
