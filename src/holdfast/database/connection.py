"""Opening one connection: each host of a URL in turn, kept alive, and every wait bounded."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode

import asyncpg

from holdfast.database.arrays import ArrayConnection
from holdfast.database.parameters import Keepalive, Parameters
from holdfast.database.schema import check_server
from holdfast.database.sessions import direct_question
from holdfast.database.urls import FORM, Target, read_url, redact
from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    InsufficientRights,
    InvalidDatabaseURL,
)

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"  # generic for types only

# What a connection raises if it has ended or does not answer, in any state.
LOST: Final = (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.PostgresError)
# With these the server says that it ends the connection, or only a statement (QueryCanceledError).
_ENDED: Final = (asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError)
_CLOSE_SECONDS: Final = 2.0

# After these the next host may be the right one.
_NEXT: Final = (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)


async def open_connection(
    target: Target, *, call_seconds: float | None = None, prepare: bool = False
) -> Connection:
    """Open a connection to the first host that can be used; errors are the driver's own.

    Args:
        target: what a URL says.
        call_seconds: the longest that a statement may take; None: no bound.
        prepare: keep statements prepared by name, which a pooler may mix up.
    """
    wanted = target.parameters.attributes
    # A standby if there is one: every host is asked for that before any host is taken.
    rounds = ("standby", "any") if wanted == "prefer-standby" else (wanted,)
    last: Exception | None = None
    for attributes in rounds:
        for host in target.hosts or (None,):
            try:
                connection = await _open(target, host, attributes, call_seconds, prepare)
            except _NEXT as error:
                last = error
            else:
                _keep_alive(connection, target.parameters.keepalive)
                return connection
    assert last is not None, "there is always a host to try"
    raise last


async def connect(url: str) -> asyncpg.Connection[asyncpg.Record]:
    """Open one connection to a server that is new enough.

    Raises:
        DatabaseUnavailable: no server answers, there is no such database, or the login is refused.
        InsufficientRights: the role may not connect to the database.
        InvalidDatabaseURL: the driver cannot read the URL.
        ServerTooOld: the server is older than PostgreSQL 14.
    """
    target = read_url(url)
    try:
        connection = await open_connection(target)
    except (*LOST, ValueError) as error:
        raise connect_error(error, target) from error
    try:
        check_server(connection)
    except DatabaseError:
        await close_connection(connection)
        raise
    return connection


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Connection]:
    """Open one connection to a server that is new enough, for the length of the block.

    Raises what `connect` raises, and DatabaseUnavailable if the connection is lost in the block.
    """
    connection = await connect(url)
    try:
        yield connection
    except LOST as error:
        if isinstance(error, DatabaseError) or not (
            connection.is_closed() or isinstance(error, _ENDED)
        ):
            raise
        stopped = isinstance(error, asyncpg.QueryCanceledError)
        what = "a statement was stopped" if stopped else "the connection was lost"
        raise DatabaseUnavailable(f"{redact(url)}: {what} ({error}): try again") from error
    finally:
        await close_connection(connection)


async def close_connection(connection: Connection) -> None:
    """Close a connection; one that does not answer is dropped after two seconds."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await connection.close()
    except LOST:
        pass
    finally:
        connection.terminate()


async def is_direct(connection: Connection, keepalive: Keepalive | None = None) -> bool:
    """Return True if the server itself answers; see `direct_question`.

    The question uses the simple protocol: a pooler may not know prepared statements.
    """
    question = direct_question(int(connection.get_server_pid()), keepalive)
    return await connection.execute(question) == "SELECT 1"


async def _open(
    target: Target,
    host: tuple[str, int] | None,
    attributes: str,
    call_seconds: float | None,
    prepare: bool,
) -> Connection:
    parameters = target.parameters
    place: dict[str, Any] = {} if host is None else {"host": host[0], "port": host[1]}
    return await asyncpg.connect(
        f"postgresql://?{urlencode(_for_the_driver(parameters, attributes))}",
        user=target.user,
        password=target.password,
        database=target.database,
        ssl=_system_roots() if parameters.system_roots else None,
        timeout=parameters.connect_seconds,
        command_timeout=call_seconds,
        statement_cache_size=100 if prepare else 0,
        connection_class=ArrayConnection,
        server_settings={"application_name": "holdfast", **parameters.settings},
        **place,
    )


def _for_the_driver(parameters: Parameters, attributes: str) -> dict[str, str]:
    own = {"sslrootcert", "sslmode"} if parameters.system_roots else set[str]()
    kept = {name: value for name, value in parameters.driver.items() if name not in own}
    return {**kept, "target_session_attrs": attributes}


def _system_roots() -> ssl.SSLContext:
    """Check the server's certificate and name against the system's authorities."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["postgresql"])
    return context


def _keep_alive(connection: Connection, keepalive: Keepalive) -> None:
    """Let the kernel notice a peer that is gone, and keep the connection known to firewalls."""
    transport: asyncio.Transport = connection._transport  # type: ignore[attr-defined]
    link = transport.get_extra_info("socket")
    if link is None or link.family not in (socket.AF_INET, socket.AF_INET6) or not keepalive.on:
        return
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), keepalive.idle_seconds),
        (("TCP_KEEPINTVL",), keepalive.interval_seconds),
        (("TCP_KEEPCNT",), keepalive.count),
        (("TCP_USER_TIMEOUT",), keepalive.user_timeout),
    ):
        option = next((getattr(socket, name) for name in names if hasattr(socket, name)), None)
        if option is not None:
            with suppress(OSError):  # this system does not have it
                link.setsockopt(socket.IPPROTO_TCP, option, value)


def connect_error(error: Exception, target: Target) -> DatabaseError:
    """Turn what the driver raises on connecting into an error that says what to do."""
    where, name, role = redact(target.url), target.database, target.user
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
            return InvalidDatabaseURL(f"{where}: {error}; a URL looks like {FORM}")
        case asyncpg.TargetServerAttributeNotMatched():
            return DatabaseUnavailable(
                f"{where}: none of the hosts is {target.parameters.attributes!r} now "
                "(target_session_attrs)"
            )
        case asyncpg.UndefinedObjectError():
            return InvalidDatabaseURL(f"{where}: {error}: take the parameter out of the URL")
        case asyncpg.ProtocolViolationError() if "startup parameter" in str(error):
            return InvalidDatabaseURL(
                f"{where}: the pooler refuses a parameter of the URL ({error}): take it out, or "
                "name it in the pooler's ignore_startup_parameters"
            )
        case asyncpg.PostgresError() if "command-line argument" in str(error):
            return InvalidDatabaseURL(
                f"{where}: the server does not know the options of the URL ({error.args[0]}): "
                "correct options=, or take it out"
            )
        case asyncpg.PostgresError():
            return DatabaseUnavailable(f"{where}: the server takes no connection now: {error}")
        case ssl.SSLError() | ConnectionError() if "SSL" in str(error):
            return DatabaseUnavailable(
                f"{where}: the connection cannot be encrypted as the URL asks ({error}): "
                "check sslmode and sslrootcert"
            )
        case _:
            reason = str(error) or type(error).__name__
            return DatabaseUnavailable(
                f"{where}: no server answers ({reason}): start it, or correct the URL"
            )
