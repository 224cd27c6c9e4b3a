"""SQLSTATE to error class, in one place."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import asyncpg

from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    HoldfastError,
    InsufficientRights,
    InvalidDatabaseURL,
    PayloadError,
    SchemaMissing,
    TransientDatabaseError,
)

# By SQLSTATE, or by its class: the first two characters.
_ERRORS: Final[dict[str, type[HoldfastError]]] = {
    "40001": TransientDatabaseError,  # serialization failure
    "40P01": TransientDatabaseError,  # deadlock
    "55P03": TransientDatabaseError,  # lock timeout
    "57014": TransientDatabaseError,  # statement timeout
    "08": DatabaseUnavailable,  # connection lost
    "53": DatabaseUnavailable,  # out of connections, memory, disk
    "57": DatabaseUnavailable,  # shutting down, starting up
    "58": DatabaseUnavailable,  # trouble below the server
    "28": DatabaseUnavailable,  # login refused
    "25006": DatabaseUnavailable,  # read-only: a standby, until it is promoted
    "3D000": DatabaseUnavailable,  # no such database
    "42501": InsufficientRights,
    "3F000": SchemaMissing,
    "42P01": SchemaMissing,
    "42883": SchemaMissing,
    "22": PayloadError,
    "23": PayloadError,
}

LOCK_TIMEOUT: Final = "55P03"


@contextmanager
def translated() -> Generator[None]:
    """Raise errors of the driver and of the server as errors of ours."""
    try:
        yield
    except asyncpg.PostgresError as error:
        raise _from_server(error) from error
    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise _from_driver(error) from error


def is_refused_value(error: BaseException) -> bool:
    """Say whether the server would take the call without some value in it."""
    return isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "")[:2] in {"22", "23"}


def is_lock_timeout(error: BaseException) -> bool:
    """Say whether the call gave up on somebody else's lock."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate == LOCK_TIMEOUT


def _from_server(error: asyncpg.PostgresError) -> HoldfastError:
    code = error.sqlstate or ""
    kind = _ERRORS.get(code) or _ERRORS.get(code[:2]) or DatabaseError
    return kind(f"{error} ({code})" if code else str(error))


def _from_driver(error: Exception) -> HoldfastError:
    if isinstance(error, asyncpg.ClientConfigurationError):
        return InvalidDatabaseURL(str(error))
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return PayloadError(str(error))  # the driver could not encode a parameter
    reason = str(error) or type(error).__name__
    return DatabaseUnavailable(f"the database cannot be reached: {reason}")
