"""A transaction that is open on a connection of any library, and how it ends with a record."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from holdfast.database.connection import close_connection
from holdfast.database.urls import redact
from holdfast.errors import (
    ConfigurationError,
    DatabaseError,
    HoldfastError,
    InsufficientRights,
    PayloadError,
    SchemaMissing,
)
from holdfast.store.port.transactions import (
    AlreadyRecorded,
    HeldLease,
    Needless,
    NotBegun,
    OpenTransaction,
    RunNotHeld,
    is_away,
    sqlstate_of,
)
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.errors import ended_by_server, is_of_an_end
from holdfast.store.postgres.executing import Mark, Rows, executor, result_of
from holdfast.store.postgres.starts import Statement
from holdfast.types import Event

T = TypeVar("T")

_LEAVE: Final = (
    "insert into {table} as t (run_id, key, result) values ({}, {}, {}) "
    "on conflict (run_id, key) do update set result = excluded.result"
)
# What stands there is the mark of a failed attempt; see `lease_of`.
_BY_THIS_OR_BEFORE: Final = (
    "case when left(t.result::text, 1) = ' ' then cast(t.result::text as bigint) <= {} "
    "else false end"
)

# Who stops between the record and the commit holds up the next attempt: the server ends that.
_COMMIT_SOON: Final = "set_config('idle_in_transaction_session_timeout', '5s', true)"

Typed: TypeAlias = tuple[str, str]  # the type of a value, and its text

_CLEAN_SECONDS: Final = 3600.0
_MOST_CLEANED: Final = 1000  # results at a time
_OF_OTHERS: Final = "30 days"  # after which results of runs that a worker does not know are deleted
_NO_RIGHTS: Final = "42501"
_NOT_HELD: Final = "HF008"
_LEFT: Final = "HF010"  # an attempt of other code has left a result in the table
_ABORTED: Final = "25P02"  # an error of a statement was caught
_ABSENT: Final = ("3F000", "42883", "42P01", _NO_RIGHTS)  # no schema, no function, no table


class Place(NamedTuple):
    """A database to which connections lead, and where the results of its transactions are kept.

    In the log of the run there, in a table of results beside the data, or only elsewhere. `kept`
    are those of a test, whose log is in memory: the workers of one test find no results of others.
    """

    database: Database
    records: Literal["log", "table", "elsewhere"]
    kept: dict[tuple[UUID, str], str] | None = None

    @classmethod
    def of(
        cls,
        url: str,
        schema: str,
        *,
        records: Literal["table", "elsewhere"],
        kept: dict[tuple[UUID, str], str] | None = None,
    ) -> Place:
        """Return the place of a URL. Raises InvalidDatabaseURL, InvalidSchemaName."""
        database = Database(url, schema=schema, connections=1, prepare=None)
        database.read_url()
        return cls(database, records, kept)

    @property
    def prepares(self) -> bool:
        """True if libraries may prepare statements by name: elsewhere may be a pooler between."""
        return self.records == "log" and self.database.prepares


class Session:
    """A transaction on a connection: the base of one for each library.

    Methods of a synchronous library never suspend.
    """

    def __init__(self, place: Place, connection: Any) -> None:
        self.place, self.connection = place, connection
        self.sent = self.committed = False
        self._kept: tuple[tuple[UUID, str], str] | None = None

    @property
    def in_log(self) -> bool:
        return self.place.records == "log"

    async def find(self, run_id: UUID, key: str, *, apart: bool) -> str | None:
        if self.place.kept is not None:
            return self.place.kept.get((run_id, key))
        if not apart:
            return None
        found = await self.execute(
            "select result::text from {table} where run_id = {} and key = {}",
            ("uuid", str(run_id)),
            ("text", key),
        )
        return None if not found else str(found[0][0])

    async def record(self, event: Event, lease: HeldLease, expected: int) -> int:
        await self._complete()
        return await self.commit_with(
            expected,
            "select {schema}.record_step({}, {}, {}, {}, {}, {}, {}, {})",
            ("text", lease.worker_id),
            ("uuid", str(lease.run_id)),
            ("int", str(lease.lease_no)),
            ("text", str(event.key)),
            ("json", str(event.details)),
            ("bigint", str(event.at)),
            ("float8", str(lease.seconds)),
            ("int", str(expected)),
        )

    async def keep(self, run_id: UUID, event: Event, number: int) -> None:
        await self._complete()
        self._kept = (run_id, str(event.key)), str(event.details)
        if self.place.records == "elsewhere":
            await self.execute("select 1")  # refused if an error of a statement was caught
            return
        kept = await self.execute(
            f"{_LEAVE} where {{}} or {_BY_THIS_OR_BEFORE} returning {_COMMIT_SOON}",
            ("uuid", str(run_id)),
            ("text", str(event.key)),
            ("json", str(event.details)),
            ("boolean", str(self.place.kept is not None)),
            ("bigint", str(number)),
        )
        if not kept:
            raise AlreadyRecorded(f"another attempt has left a result of {event.key}, or failed")

    async def give_up(self, run_id: UUID, key: str, number: int) -> str | None:
        if self.place.kept is not None:
            return self.place.kept.get((run_id, key))
        values = ("uuid", str(run_id)), ("text", key), ("json", f" {number}")
        text = f"{_LEAVE} where {_BY_THIS_OR_BEFORE} returning true"
        done = await self.execute(text, *values, ("bigint", str(number)))
        return None if done else await self.find(run_id, key, apart=True)

    async def _complete(self) -> None:
        """Send what the library has not sent yet. Raises ConfigurationError if it has ended."""
        if not self.is_open():
            raise _ended_itself()
        await self.flush()
        if self.encoding() != "UTF8":  # the code has set another for its own texts
            await self.execute("select set_config('client_encoding', 'UTF8', true)")

    async def execute(self, text: str, *values: Typed) -> Rows:
        """Execute a statement with values, and return its rows.

        They are sent as text: the code may have made the connection encode a type otherwise.
        """

        def write(mark: Mark) -> Statement:
            marks = [
                f"cast(cast({mark(number)} as text) as {kind})"
                for number, (kind, _) in enumerate(values, 1)
            ]
            return Statement(self.written(text, marks), tuple(each for _, each in values))

        with self.naming():
            return await executor(self.connection)(self.connection, write)

    def written(self, text: str, marks: Iterable[str]) -> str:
        """Write a statement with what stands for its values."""
        schema = f'"{self.place.database.schema}"'
        return text.format(*marks, schema=schema, table=f"{schema}.step_results")

    async def commit_with(self, expected: int, text: str, *values: Typed) -> int:
        """Execute the last statement and commit; return the number that it has given.

        It sends a notice if that is not the expected one.
        """
        [(number, _)] = await self.execute(f"{text}, {_COMMIT_SOON}", *values)
        await self.commit()
        return int(str(number))

    @contextlib.contextmanager
    def naming(self) -> Generator[None]:
        """Raise the error that says what a refused statement of holdfast means."""
        try:
            yield
        except Exception as error:
            named = _named(error, self.place)
            if named is error:
                raise
            raise named from error

    def is_open(self) -> bool:
        """Return True if the transaction that was begun is still open."""
        raise NotImplementedError

    def was_closed(self) -> bool:
        """Return True if its connection was closed before: nothing was begun on the server."""
        return False

    def encoding(self) -> str:
        """Return in which encoding the server expects texts."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Send what the library has not sent yet."""

    async def begin(self) -> None:
        raise NotImplementedError

    async def commit(self) -> None:
        self.sent = True
        await self.finish()
        self.committed = True
        if self._kept is not None and self.place.kept is not None:
            place, result = self._kept
            self.place.kept[place] = result

    async def finish(self) -> None:
        """Send the commit."""
        raise NotImplementedError

    async def roll_back(self) -> None:
        """Roll it back, if it is open. Raises what the library raises."""
        raise NotImplementedError

    async def isolate(self, isolation: str) -> None:
        """Set the isolation level, before any other statement."""
        text = f"set transaction isolation level {isolation}"
        await result_of(self.connection.execute(text))


def _ended_itself() -> ConfigurationError:
    return ConfigurationError(
        "the code of a transaction has committed or rolled back itself, so its step is not "
        "recorded with it: let holdfast commit, and raise an error to roll back"
    )


def _named(error: Exception, place: Place) -> Exception:
    """Return the error that says what a refused record means."""
    code, schema = sqlstate_of(error) or "", place.database.schema
    if code == _ABORTED:
        return DatabaseError(
            "the code of a transaction has caught an error of a statement, after which PostgreSQL "
            "takes nothing more in it: let the error out, or put what may fail into a savepoint, "
            "`session.begin_nested()` of SQLAlchemy, `atomic()` of Django, or "
            "`connection.transaction()` of asyncpg and psycopg"
        )
    if code == _NOT_HELD:
        return RunNotHeld(
            "this worker does not hold the run in the database of the transaction's connection: "
            "another worker has taken the run over, or the run has ended, or the connection leads "
            "to another database"
        )
    if code == _LEFT:
        return AlreadyRecorded(str(error))
    if code in _ABSENT:
        kind = InsufficientRights if code == _NO_RIGHTS else SchemaMissing
        if place.records == "table":
            return kind(
                f"the result of a transaction cannot be kept in its database: {error}. Make the "
                f"table {schema}.step_results with `holdfast migrate --results URL`; for a role "
                "that does not own it, with `--grant ROLE`"
            )
        return kind(
            f"the step of a transaction cannot be recorded on its connection: {error}. It must "
            f"lead to the database of holdfast, which has the schema {schema!r}, with a role that "
            "works with it: `holdfast migrate --grant ROLE`"
        )
    if code[:2] in ("22", "54"):
        return PayloadError(f"the result of the step cannot be stored: {error}")
    return error


@contextlib.contextmanager
def beginning(place: Place) -> Generator[None]:
    """Raise NotBegun for an error after which the next connection may be sound."""
    try:
        yield
    except Exception as error:
        if isinstance(error, HoldfastError) or not is_away(error):
            raise
        raise not_begun(place, error) from error


def not_begun(place: Place, error: Exception) -> NotBegun:
    """Return the error of a transaction that could not be begun."""
    where = redact(place.database.target.url)
    return NotBegun(f"{where}: no transaction can be begun: {error or repr(error)}")


async def run_within(
    session: Session, use: Callable[[OpenTransaction], Awaitable[T]], isolation: str | None = None
) -> T:
    """Begin, and call `use` with the transaction; roll back what it has not committed."""
    try:
        await session.begin()
    except Exception:
        with beginning(session.place):
            raise
    try:
        if isolation is not None:
            await session.isolate(isolation)
        result = await use(session)
        if not session.sent:
            await session.commit()
        return result
    except Exception as error:
        if session.was_closed():
            raise not_begun(session.place, error) from error
        if is_of_an_end(error):
            raise _ended_itself() from error
        if not session.sent and (ended := ended_by_server(error)) is not None:
            raise ended from error
        raise
    finally:
        if not session.committed:
            with contextlib.suppress(Exception):  # a connection that is not in order is not kept
                await session.roll_back()


class Cleaning:
    """Deletes results that nothing needs any more from the table beside the data."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._clean_at = 0.0  # monotonic; the first transaction of a worker cleans as well
        self._cleaned_until = "-infinity"

    async def within(
        self, use: Callable[[OpenTransaction], Awaitable[T]], isolation: str | None
    ) -> T:
        raise NotImplementedError

    async def log_is_away(self) -> bool:
        if self.place.records != "log":
            return False
        try:
            await close_connection(await self.place.database.connect_unlimited())
        except Exception as error:
            return is_away(error)
        return False

    async def clean(self, needless: Needless) -> None:
        if self.place.kept is not None or time.monotonic() < self._clean_at:
            return  # what a test leaves is the test's
        self._clean_at = time.monotonic() + _CLEAN_SECONDS

        async def delete(session: Any) -> str | None:
            old = await session.execute(
                "select run_id::text, key, recorded_at::text, "
                f"case when recorded_at < now() - interval '{_OF_OTHERS}' then 'old' end "
                "from {table} "
                "where recorded_at < now() - interval '1 hour' and recorded_at > {} "
                f"order by recorded_at limit {_MOST_CLEANED}",
                ("timestamptz", self._cleaned_until),
            )
            places = [(str(row[0]), str(row[1])) for row in old]
            if not places:
                return None
            flags = await needless([UUID(run) for run, _ in places], [key for _, key in places])
            gone = [
                place
                for place, row, is_needless in zip(places, old, flags, strict=True)
                if (row[3] if is_needless is None else is_needless)
            ]
            if gone:
                await session.execute(
                    "delete from {table} t using json_array_elements({}) as g (place) "
                    "where t.run_id = cast(g.place ->> 0 as uuid) and t.key = g.place ->> 1 "
                    "returning true",
                    ("json", msgspec.json.encode(gone).decode()),
                )
            return str(old[-1][2]) if len(old) == _MOST_CLEANED else None

        more = await self.within(delete, None)
        self._cleaned_until = more or "-infinity"  # what others may need is passed over
        if more is not None:
            self._clean_at = 0.0
