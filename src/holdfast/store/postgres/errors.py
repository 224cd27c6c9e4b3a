"""SQLSTATE to error class, in one place."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import asyncpg

from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    HoldfastError,
    InsufficientRights,
    InvalidDatabaseURL,
    InvalidInput,
    PayloadError,
    RunExists,
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
    "22004": InvalidInput,  # refused by our functions: a null
    "22023": InvalidInput,  # and what cannot be
    "22": PayloadError,
    "23": PayloadError,
    "54": PayloadError,  # beyond a limit of the server's: too long, too deeply nested
}

# What the call met, said before the server's own words.
_MEANINGS: Final[dict[type[HoldfastError], str]] = {
    TransientDatabaseError: "the database gave up on the call, which may be made again: ",
    InsufficientRights: "the role lacks a right that the call needs: ",
    SchemaMissing: "the schema lacks what the call needs (run `holdfast migrate`): ",
    PayloadError: "the database cannot store a value of the call: ",
    DatabaseError: "the database refuses the call: ",
}

LOCK_TIMEOUT: Final = "55P03"
_OTHER_WORKFLOW: Final = "HF001"  # raised by start_runs, with the run's id as its detail


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
    code = error.sqlstate or "" if isinstance(error, asyncpg.PostgresError) else ""
    return code[:2] in {"22", "23", "54"}


def is_unexplained(error: BaseException) -> bool:
    """Return True if the server failed for a reason that may lie in one value of the call."""
    return isinstance(error, asyncpg.PostgresError) and _kind_of(error) is DatabaseError


def is_too_slow(error: BaseException) -> bool:
    """Return True if the call was cut off because it took too long."""
    return isinstance(error, TimeoutError | asyncpg.QueryCanceledError)


def is_lock_timeout(error: BaseException) -> bool:
    """Say whether the call gave up on somebody else's lock."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate == LOCK_TIMEOUT


def _kind_of(error: asyncpg.PostgresError) -> type[HoldfastError]:
    code = error.sqlstate or ""
    return _ERRORS.get(code) or _ERRORS.get(code[:2]) or DatabaseError


def _from_server(error: asyncpg.PostgresError) -> HoldfastError:
    code = error.sqlstate or ""
    if code == _OTHER_WORKFLOW:
        return RunExists(UUID(error.detail), str(error))
    kind = _kind_of(error)
    if kind is InvalidInput:
        return kind(str(error))  # our own words
    return kind(f"{_MEANINGS.get(kind, '')}{error} ({code})" if code else str(error))


def _from_driver(error: Exception) -> HoldfastError:
    if isinstance(error, asyncpg.ClientConfigurationError):
        return InvalidDatabaseURL(str(error))
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return PayloadError(str(error))  # the driver could not encode a parameter
    reason = str(error) or type(error).__name__
    return DatabaseUnavailable(f"the database cannot be reached: {reason}")
