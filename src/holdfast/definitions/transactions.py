"""Transactional steps: what the code writes and the record of the step are one commit."""

from __future__ import annotations

import typing
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)
from urllib.parse import parse_qsl

import msgspec

from holdfast.definitions.options import option
from holdfast.definitions.signatures import POSITIONAL, Signature, evaluate, read_signature
from holdfast.definitions.steps import Step
from holdfast.definitions.workflows import Registry
from holdfast.errors import ConfigurationError
from holdfast.retry import Retry
from holdfast.store.port.transactions import ConnectionKind
from holdfast.values.durations import Duration
from holdfast.values.numbers import is_a

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MOST: Final = "5m"  # how long a transaction may be open, unless it says another time

Isolation = Literal["read committed", "repeatable read", "serializable"]

# What a parameter is annotated with, by library and class; True if the step must be async.
_KINDS: Final[Mapping[tuple[str, str], tuple[ConnectionKind, bool]]] = {
    ("asyncpg", "Connection"): ("asyncpg", True),
    ("psycopg", "AsyncConnection"): ("psycopg-async", True),
    ("psycopg", "Connection"): ("psycopg", False),
    ("sqlalchemy", "AsyncSession"): ("sqlalchemy-async", True),
    ("sqlalchemy", "AsyncConnection"): ("sqlalchemy-async", True),
    ("sqlalchemy", "Session"): ("sqlalchemy", False),
    ("sqlalchemy", "Connection"): ("sqlalchemy", False),
    ("django", "BaseDatabaseWrapper"): ("django", False),
}
_ISOLATIONS: Final = typing.get_args(Isolation)
_CONNECTIONS: Final = (
    "annotate the first parameter with asyncpg.Connection, psycopg.AsyncConnection or "
    "psycopg.Connection, an AsyncSession, AsyncConnection, Session or Connection of SQLAlchemy, or "
    "BaseDatabaseWrapper of Django"
)


class Database(msgspec.Struct, frozen=True):
    """Another PostgreSQL database than that of holdfast, for the data of transactions.

    ```python
    shop = Database("postgresql://app@db/shop")

    @app.transaction(database=shop)
    async def book(connection: asyncpg.Connection, room: int) -> None: ...
    ```

    `holdfast migrate --results URL` makes the table `step_results` in its schema `schema`.
    """

    url: str
    schema: str = "holdfast"

    def __post_init__(self) -> None:
        is_a(str, self.schema, "Database: schema")
        if not is_a(str, self.url, "Database: url").startswith(("postgresql://", "postgres://")):
            raise ConfigurationError(
                "a Database has the URL of PostgreSQL, such as postgresql://app@db/shop"
            )

    def __repr__(self) -> str:
        return f"Database(…, schema={self.schema!r})"  # the URL may have a password


class Transaction(Step[P, R_co]):
    """A step whose code works in a transaction that records its result as well.

    Its function takes a connection before its arguments. Calls leave the connection out.
    """

    what: ClassVar[str] = "transaction"

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        isolation: Isolation | None = None,
        database: Database | None = None,
        **options: Any,
    ) -> None:
        """Wrap `fn`; `options` are those of `Step`.

        Raises ConfigurationError for a function without a connection, and for other flaws.
        """
        super().__init__(fn, **options)
        self.connection = self._connection()  # its kind and its class
        self.connects = self.connection[0]
        if isolation is not None and isolation not in _ISOLATIONS:
            with option(f"transaction {self.name}", "isolation"):
                raise ConfigurationError(f"must be one of {', '.join(_ISOLATIONS)}")
        self.isolation, self.database = isolation, database
        # The snapshot of a strict one does not see what was appended to the log meanwhile: so its
        # result is kept apart from the log, as in another database.
        self.is_strict = isolation not in (None, "read committed")
        self.is_apart, self.place = self.is_strict or database is not None, ""
        if database is not None:
            with option(f"transaction {self.name}", "database"):
                if not isinstance(database, Database):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise ConfigurationError("must be a Database, which has a URL")
                if self.connects == "django":
                    raise ConfigurationError("is for other libraries: Django has its own")
                # Its names stay if it moves to another host, or gets another password.
                address, _, query = database.url.partition("://")[2].partition("?")
                named = {"dbname": address.partition("/")[2], **dict(parse_qsl(query))}
                self.place = f"{named.get('database', named['dbname'])}/{database.schema}"

    def call_plain(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R_co]:
        """Refuse a call outside of a workflow's code: no connection is at hand."""
        raise ConfigurationError(
            f"transaction {self.name} was called outside of a workflow, which would give it its "
            "connection: in a step, in another transaction or in a test, call "
            f"{self.name}.fn(connection, …) with one of yours"
        )

    def _read_parameters(self, fn: Callable[..., object]) -> None:
        """Leave out the connection, which no caller gives."""
        parameters = list(read_signature(fn).parameters.values())
        if not parameters or parameters[0].kind not in POSITIONAL:
            raise ConfigurationError(f"transaction {self.name} takes no connection: {_CONNECTIONS}")
        self._first = parameters[0].name
        self._use_signature(Signature(fn, self.name, bound=True))

    def _connection(self) -> tuple[ConnectionKind, type]:
        """Return the kind of connection that the function takes, and its class."""
        try:
            annotation = evaluate(self.fn, self._first)
        except NameError as error:
            raise ConfigurationError(
                f"transaction {self.name}({self._first}): its type cannot be resolved ({error}); "
                "import it at the top of the module, not under TYPE_CHECKING"
            ) from None
        made = typing.get_origin(annotation) or annotation
        for each in made.__mro__ if isinstance(made, type) else ():
            found = _KINDS.get((each.__module__.partition(".")[0], each.__name__))
            if found is not None and isinstance(made, type):
                self._check_async(made, needs_async=found[1])
                return found[0], made
        raise ConfigurationError(
            f"transaction {self.name}({self._first}): {annotation!r} is not a connection that "
            f"holdfast can give: {_CONNECTIONS}"
        )

    def _check_async(self, made: type, *, needs_async: bool) -> None:
        if self.is_async != needs_async:
            must = "async def" if needs_async else "a plain def"
            raise ConfigurationError(
                f"transaction {self.name} has a {made.__module__}.{made.__name__}, so it must be "
                f"{must}"
            )


class TransactionDecorator(Protocol):
    """The decorator that `app.transaction(…)` returns."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[C, P], Coroutine[object, None, R]], /
    ) -> Transaction[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[C, P], R], /) -> Transaction[P, R]: ...


class Transacting:
    """The part of an app for transactional steps."""

    registry: Registry

    @overload
    def transaction(
        self, fn: Callable[Concatenate[C, P], Coroutine[object, None, R]], /
    ) -> Transaction[P, R]: ...
    @overload
    def transaction(self, fn: Callable[Concatenate[C, P], R], /) -> Transaction[P, R]: ...
    @overload
    def transaction(
        self,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = MOST,
        aliases: Sequence[str] = (),
        isolation: Isolation | None = None,
        database: Database | None = None,
    ) -> TransactionDecorator: ...
    def transaction(
        self,
        fn: Callable[..., object] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = MOST,
        aliases: Sequence[str] = (),
        isolation: Isolation | None = None,
        database: Database | None = None,
    ) -> object:
        """Make a step of a function that gets a connection, in a transaction of the database.

        ```python
        @app.transaction
        async def book(connection: asyncpg.Connection, room: int) -> None:
            await connection.execute("insert into bookings (room) values ($1)", room)
        ```

        What the code writes and the record of the step are one commit: both exist, or neither. The
        annotation of the first parameter says which connection it gets: one of asyncpg or psycopg,
        a session or connection of SQLAlchemy, or Django's. The code does not commit, and it does
        not keep the connection. After a deadlock or a serialization failure the whole transaction
        is repeated, which does not count as an attempt. `isolation` is the server's default unless
        it is said; `timeout` is five minutes, because an open transaction holds locks. With a
        `database` the transaction and a note of its result are one commit there, and the log
        follows. The other options are those of `step`. Raises ConfigurationError for a function
        or options that cannot work, and for a name that the app has already.
        """

        def define(fn: Callable[..., object]) -> Step[..., object]:
            made: Transaction[..., object] = Transaction(
                fn,
                name=name,
                retry=self.registry.retry if retry is None else retry,
                timeout=timeout,
                aliases=aliases,
                isolation=isolation,
                database=database,
            )
            return self.registry.add_step(made)

        return define if fn is None else define(fn)
