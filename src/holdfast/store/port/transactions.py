"""The part of the port for transactional steps: connections for their code, and their records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

from holdfast.errors import ConfigurationError, DatabaseUnavailable, HoldfastError
from holdfast.store.port.readable import readable
from holdfast.types import Event

T = TypeVar("T")

ConnectionKind: TypeAlias = Literal[
    "asyncpg", "psycopg", "psycopg-async", "sqlalchemy", "sqlalchemy-async", "django"
]

DataPlace: TypeAlias = tuple[str, str]  # the URL of another database, and a schema there
Needless: TypeAlias = Callable[[Sequence[UUID], Sequence[str]], Awaitable[Sequence[bool | None]]]


SERIAL_BITS: Final = 40  # of the number of a try: before them is its lease
LAST_LEASE: Final = 2**63 - 1  # of a run that has ended: no attempt of it may commit


class HeldLease(NamedTuple):
    """By what a worker holds a run, and for how many seconds it does after each heartbeat."""

    worker_id: str
    run_id: UUID
    lease_no: int
    seconds: float


class RunNotHeld(ConfigurationError):
    """The worker does not hold the run: the transaction is rolled back."""


class AlreadyRecorded(Exception):
    """An earlier attempt has left a result: the transaction is rolled back, and that is taken."""


class NotBegun(DatabaseUnavailable):
    """No connection was there, or it was lost before the code began: the next one may be sound."""


_MOST_CAUSES: Final = 5  # of an error of a library; a chain of causes may be a circle
# Lost, out of room, shutting down, broken; a login, a standby, a name, or no connections for now.
_AWAY: Final = ("08", "53", "57", "58", "28", "25006", "3D000", "55000")
_AGAIN: Final = ("40001", "40P01")  # a serialization failure, a deadlock


class OpenTransaction(Protocol):
    """A transaction that is open on a connection. With a synchronous one nothing suspends."""

    @property
    def connection(self) -> object:
        """What the code of the step gets."""
        ...

    async def find(self, run_id: UUID, key: str, *, apart: bool) -> str | None:
        """Return the details of the step's end if an earlier attempt left them here.

        None if it did not. If it is not `apart`, it would be in the log, and is not looked for. A
        text that `lease_of` reads says that an attempt has failed; see `give_up`.
        """
        ...

    async def record(self, event: Event, lease: HeldLease, expected: int) -> int:
        """Append the end of the step to the log of its run, commit, and return its index there.

        It costs least if that is as `expected`. Raises RunNotHeld, ConfigurationError if the code
        has ended the transaction, PayloadError for a result that the server refuses.
        """
        ...

    async def keep(self, run_id: UUID, event: Event, number: int) -> None:
        """Keep the end of the step here, apart from the log, which gets it as that of any step.

        The event has a `result_key`. Numbers are in the order of the tries of a call, over all
        leases. Raises AlreadyRecorded if another try has left an end, or a mark with a later number
        than this, and as `record`.
        """
        ...

    async def give_up(self, run_id: UUID, key: str, number: int) -> str | None:
        """Leave a mark here that an attempt has failed: tries before the number cannot commit then.

        One that commits at this moment is waited for. Return what stands here instead: an end, or a
        later mark. With `LAST_LEASE` no attempt of the run can commit any more.
        """
        ...

    async def commit(self) -> None:
        """Commit."""
        ...

    @property
    def in_log(self) -> bool:
        """True if `record` appends to the log of the run here, which has it if it was committed."""
        ...

    @property
    def sent(self) -> bool:
        """True once the commit was sent: unless that is refused, it may be committed."""
        ...


class Connector(Protocol):
    """Lends connections of one kind to transactions."""

    async def within(
        self, use: Callable[[OpenTransaction], Awaitable[T]], isolation: str | None
    ) -> T:
        """Begin a transaction, call `use` with it, and roll back what that has not committed.

        What it has not tried to commit is committed. Raises NotBegun if `use` was not called.
        """
        ...

    async def log_is_away(self) -> bool:
        """Return True if connections lead to the log, and the database takes no new one.

        It asks by a connection of its own, whatever library those have that it lends.
        """
        ...

    async def clean(self, needless: Needless) -> None:
        """Delete old results that nothing needs any more, now and then."""

    async def close(self) -> None:
        """Close every connection that is not lent."""
        ...


class TransactionStore(Protocol):
    """Connections and records for transactional steps."""

    @readable
    def connector(
        self, kind: ConnectionKind, factory: type, size: int, data: DataPlace | None = None
    ) -> Connector:
        """Return what lends at most `size` connections of a kind at a time.

        `factory` is the class of the connection that the code gets, `data` the database that it
        leads to, by default that of the store. Raises ConfigurationError if
        there is no database, or if the library of the connection is not installed.
        """
        ...

    @readable
    async def find_step(self, run_id: UUID, key: str) -> int | None:
        """Return the index of a step's result in the log of its run, None if it is not there.

        A transaction that may still commit it is waited for.
        """
        ...

    @readable
    async def needless_results(
        self, run_ids: Sequence[UUID], keys: Sequence[str]
    ) -> Sequence[bool | None]:
        """Return for each step if its result is in the log, or its run cannot be retried.

        None for a run that is not here: deleted, or of another shard, application or engine.
        """
        ...

    @readable
    async def results_since(self) -> int:
        """Return since when results say of which run they are, in microseconds: `result_key`."""
        ...

    async def sealed_step(self, run_id: UUID, event: Event) -> Event:
        """Return the end of a step as the log stores it: its payload is encoded."""
        ...


def result_key(key: str, began: int, since: int) -> str:
    """Return the key of the result of a call beside its data, for the run that began at a moment.

    The id of a run may come again, and in two engines. `since` is when an engine began to write
    such keys: runs that began before have the keys of their calls.
    """
    return key if began < since else f"{key} {since}.{began}"


def lease_of(left: str) -> int | None:
    """Return the number of a try that has failed, if that was left for a step; None for an end.

    It is a number behind a space, with which no details of an event begin.
    """
    return int(left) if left.startswith(" ") else None


def sqlstate_of(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of an error of any library, None if the server did not send it."""
    return _said(error, lambda each: getattr(each, "sqlstate", None))


def _said(error: BaseException | None, read: Callable[[object], object]) -> str | None:
    for _ in range(_MOST_CAUSES):
        said = read(error)
        if isinstance(said, str):
            return said
        if error is not None:
            error = getattr(error, "orig", None) or error.__cause__
    return None


def _class_of(error: BaseException) -> str | None:
    """Return the class of the SQLSTATE: its first two characters.

    An internal error (XX) that ends the session is one of class 08, a lost connection: poolers say
    so that the database is away, and a server that its disk is full.
    """
    code = sqlstate_of(error)
    if code is None or not code.startswith("XX"):
        return code and code[:2]
    return "08" if _said(error, _severity) in ("FATAL", "PANIC") else "XX"


def _severity(error: object) -> object:
    """Return what asyncpg says of an error, or psycopg."""
    of_psycopg = getattr(getattr(error, "diag", None), "severity_nonlocalized", None)
    return getattr(error, "severity_en", of_psycopg)


def is_refusal(error: BaseException) -> bool:
    """Return True if the server has said that it did not commit."""
    return _class_of(error) not in (None, "08", "57", "58")


def is_away(error: BaseException) -> bool:
    """Return True if the database could not be used, or not now; another time it may be."""
    if isinstance(error, HoldfastError):
        return isinstance(error, DatabaseUnavailable)
    code = sqlstate_of(error)
    return code is None or code in _AWAY or _class_of(error) in _AWAY


def is_transient(error: BaseException) -> bool:
    """Return True if the same transaction may succeed when it is repeated as a whole."""
    return sqlstate_of(error) in _AGAIN
