"""Connections of asyncpg for the code of steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from asyncpg import InterfaceError
from asyncpg.pool import PoolConnectionProxy

from holdfast.database.connection import Connection
from holdfast.store.port.transactions import OpenTransaction
from holdfast.store.postgres.database import Pool, call_seconds
from holdfast.store.postgres.open_transaction import (
    Cleaning,
    Place,
    Session,
    Typed,
    beginning,
    run_within,
)

T = TypeVar("T")

_COMMIT_SECONDS: Final = 20.0  # without an answer by then, the log is looked at
ROLL_BACK_SECONDS: Final = 2.0
_RECORD: Final = "record_step("  # in the context of what the server says while it executes that


class AsyncpgSession(Session):
    """A transaction on a connection of asyncpg."""

    def __init__(self, place: Place, raw: Connection, isolation: str | None) -> None:
        super().__init__(place, PoolConnectionProxy(None, raw))  # type: ignore[arg-type]
        level = None if isolation is None else isolation.replace(" ", "_")
        self._raw, self._transaction = raw, raw.transaction(isolation=level)  # type: ignore[arg-type]
        self.begun = False

    def is_open(self) -> bool:
        return self._raw.is_in_transaction()

    def encoding(self) -> str:
        return str(self._raw.get_settings().client_encoding)

    async def begin(self) -> None:
        await self._transaction.start()
        self.begun = True

    async def commit_with(self, expected: int, text: str, *values: Typed) -> int:
        """Send the last statement and the commit in one message; see `commit_in_one`."""
        return await commit_in_one(self, self._raw, expected, text, *values)

    async def finish(self) -> None:
        async with asyncio.timeout(_COMMIT_SECONDS):
            await self._transaction.commit()

    async def roll_back(self) -> None:
        if self._raw.is_in_transaction():
            await self._raw.execute("rollback", timeout=ROLL_BACK_SECONDS)

    def detach(self) -> None:
        """Let the code of the step use the connection no more."""
        self.connection._detach()


async def commit_in_one(
    session: Session, raw: Connection, expected: int, text: str, *values: Typed
) -> int:
    """Send the last statement of a session and the commit in one message; see `commit_with`.

    Such a message brings no rows: if the number is not the expected one, a notice has it. Its
    literals get their types from the parameters of the function.
    """
    number = expected

    def listen(_: object, notice: Any) -> None:
        nonlocal number
        if notice.message.isdecimal() and _RECORD in (notice.context or ""):
            number = int(notice.message)

    message = f"{session.written(text, _literals(values))}; commit"
    raw.add_log_listener(listen)
    session.sent = True
    try:
        await raw.execute(message, timeout=call_seconds(len(message)))
    except Exception as error:
        if isinstance(error, InterfaceError):  # of the driver, which has not sent it
            session.sent = False
        if _is_of_commit(error):
            raise
        with session.naming():
            raise
    finally:
        raw.remove_log_listener(listen)
    raw._top_xact = None  # type: ignore[attr-defined]  # its state is that of the server
    session.committed = True
    return number


def _literals(values: Iterable[Typed]) -> list[str]:
    """Write texts that a statement has in itself, whatever the settings of the session."""
    return ["E'" + text.replace("\\", "\\\\").replace("'", "''") + "'" for _, text in values]


def _is_of_commit(error: Any) -> bool:
    """Return True if what was refused is not the statement, but the commit behind it.

    Then it is of a trigger that was put off to it: the error has a context, which is not that of
    the record, and no place in the message, as one has that the server cannot read.
    """
    context, position = getattr(error, "context", None), getattr(error, "position", None)
    return context is not None and _RECORD not in context and position is None


class _Outcome(Generic[T]):
    """What came of a transaction whose connection is sound."""

    def __init__(self, result: T | None, error: BaseException | None) -> None:
        self.result, self.error = result, error


class AsyncpgConnector(Cleaning):
    """Lends connections of asyncpg, of a pool like that of the store."""

    def __init__(self, place: Place, size: int) -> None:
        super().__init__(place)
        self._pool = Pool(place.database.connect_unlimited, size)

    async def within(
        self, use: Callable[[OpenTransaction], Awaitable[T]], isolation: str | None
    ) -> T:

        taken = False

        async def lent(raw: Connection) -> _Outcome[T]:
            nonlocal taken
            taken = True
            session = AsyncpgSession(self.place, raw, isolation)
            try:
                result = await run_within(session, use)
                if not session.committed:  # the log has the end; the answer was not read
                    raw.terminate()
                return _Outcome(result, None)
            except BaseException as error:
                # If it was cancelled while it began, the driver does not know yet that it has.
                if raw.is_closed() or raw.is_in_transaction() or not session.begun:
                    raise
                raw._top_xact = None  # type: ignore[attr-defined]  # its state is that of the server
                return _Outcome[T](None, error)
            finally:
                session.detach()

        try:
            outcome = await self._pool.call(lent)
        except Exception:
            if taken:
                raise
            with beginning(self.place):
                raise
        if outcome.error is not None:
            raise outcome.error
        return outcome.result  # type: ignore[return-value]

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.close()
