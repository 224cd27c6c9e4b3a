"""Which database to use, and what to say when it cannot be used."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import asyncpg

from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    InsufficientRights,
    InvalidDatabaseURL,
)
from holdfast.store.schema import check_schema, check_server

if TYPE_CHECKING:
    from holdfast.store.embedded import EmbeddedServer

__all__ = [
    "Database",
    "Source",
    "check_schema",
    "connect",
    "connect_error",
    "redact",
    "resolve_database",
]

_FORM = "postgresql://user:password@host:5432/database"
_SCHEME = re.compile(r"postgres(?:ql)?(?:\+\w+)?")
_SECRETS = frozenset({"password", "sslpassword"})


class Source(enum.StrEnum):
    """Where a database's URL came from."""

    OPTION = "--database"
    HOLDFAST_VARIABLE = "$HOLDFAST_DATABASE_URL"
    VARIABLE = "$DATABASE_URL"
    EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True, repr=False)
class Database:
    """A database's URL and where it came from; printed without its password.

    The embedded server is held until `close`, or to the end of a `with` block.
    """

    url: str
    source: Source
    server: EmbeddedServer | None = None

    def ensure_running(self) -> None:
        """Bring the embedded server back if it died; does nothing for any other.

        Raises:
            EmbeddedServerError: it does not start again.
        """
        if self.server is not None:
            self.server.ensure_running()

    def close(self) -> None:
        """Let go of the embedded server, if it is one."""
        if self.server is not None:
            self.server.release()

    def __str__(self) -> str:
        if self.server is not None:
            return f"the embedded database in {self.server.home}"
        return f"{redact(self.url)} (from {self.source})"

    def __repr__(self) -> str:
        return f"Database(url={redact(self.url)!r}, source={self.source!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def resolve_database(
    option: str | None = None,
    home: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Database:
    """Find the database to use, and start the embedded one if it is that.

    The first of these: the option, $HOLDFAST_DATABASE_URL, $DATABASE_URL, the embedded
    server. A data home that is named asks for the embedded server, whatever the
    environment says.

    Args:
        option: the URL given on the command line or in code.
        home: the embedded server's data home, by default $HOLDFAST_HOME or ~/.holdfast.
        environ: the environment, that of the process by default.

    Raises:
        InvalidDatabaseURL: what was found is not a PostgreSQL URL.
        EmbeddedServerError: the embedded server does not start.
    """
    candidates = [(Source.OPTION, option)]
    if home is None:
        candidates += [
            (Source.HOLDFAST_VARIABLE, environ.get("HOLDFAST_DATABASE_URL")),
            (Source.VARIABLE, environ.get("DATABASE_URL")),
        ]
    for source, url in candidates:
        if url:
            return Database(_checked(url, source), source)
    return _embedded(home)


async def connect(url: str) -> asyncpg.Connection[asyncpg.Record]:
    """Open one connection to a server that is new enough.

    Raises:
        DatabaseUnavailable: nobody answers, there is no such database, or the login is refused.
        InsufficientRights: the role may not connect to the database.
        InvalidDatabaseURL: the driver cannot read the URL.
        ServerTooOld: the server is older than PostgreSQL 14.
    """
    try:
        connection = await asyncpg.connect(url)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise connect_error(error, url) from error
    try:
        check_server(connection)
    except DatabaseError:
        await connection.close()
        raise
    return connection


def connect_error(error: Exception, url: str) -> DatabaseError:
    """Turn what the driver raises on connecting into an error that says what to do."""
    where, name, role = redact(url), _database_name(url), urlsplit(url).username
    match error:
        case asyncpg.InvalidCatalogNameError():
            return DatabaseUnavailable(
                f"{where}: the server has no database {name!r}: "
                f"create it (`createdb {name}`), or correct the URL"
            )
        case asyncpg.InvalidAuthorizationSpecificationError():
            return DatabaseUnavailable(
                f"{where}: the server refuses the login of role {role!r} ({error}): "
                "check the user and the password in the URL"
            )
        case asyncpg.InsufficientPrivilegeError():
            return InsufficientRights(
                f"{where}: the role {role!r} may not connect to database {name!r}: "
                "have its owner grant it, or use another role"
            )
        case asyncpg.ClientConfigurationError():
            return InvalidDatabaseURL(f"{where}: {error}; a URL looks like {_FORM}")
        case asyncpg.PostgresError():
            return DatabaseUnavailable(f"{where}: the server takes no connection now: {error}")
        case _:
            reason = str(error) or type(error).__name__
            return DatabaseUnavailable(
                f"{where}: no server answers ({reason}): start it, or correct the URL"
            )


def redact(url: str) -> str:
    """Return a URL without the secrets in it."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}{colon and ':***'}{at}{host}"
    query = urlencode(
        [(key, "***" if key in _SECRETS else value) for key, value in parse_qsl(parts.query)],
        safe="/*",
    )
    return parts._replace(netloc=netloc, query=query).geturl()


def _checked(url: str, source: Source) -> str:
    """Return a URL that the driver takes. A bad one is not repeated: it may hold a secret."""
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        raise InvalidDatabaseURL(f"the URL from {source} has no scheme: write {_FORM}")
    if not _SCHEME.fullmatch(scheme):
        raise InvalidDatabaseURL(
            f"the URL from {source} is for {scheme!r}; holdfast needs PostgreSQL: write {_FORM}"
        )
    checked = f"postgresql://{rest}"
    try:
        urlsplit(checked).port  # noqa: B018
    except ValueError:
        raise InvalidDatabaseURL(
            f"the URL from {source} has a host or port that cannot be read: write {_FORM}"
        ) from None
    return checked


def _embedded(home: Path | None) -> Database:
    # Imported here: it needs what only Unix has, and other databases do not.
    from holdfast.store.embedded import EmbeddedServer

    server = EmbeddedServer.acquire(home)
    return Database(server.url, Source.EMBEDDED, server)


def _database_name(url: str) -> str:
    return unquote(urlsplit(url).path.lstrip("/"))
