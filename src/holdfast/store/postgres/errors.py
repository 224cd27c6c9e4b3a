"""Say what an error of the driver or the server means, to callers and for its connection."""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

import asyncpg

from holdfast.database.scripts import load_scripts
from holdfast.database.sessions import IDLE_SECONDS
from holdfast.errors import (
    ConfigurationError,
    DatabaseError,
    DatabaseUnavailable,
    FlowInUse,
    HoldfastError,
    InsufficientRights,
    InvalidDatabaseURL,
    InvalidInput,
    LockTimeout,
    MessageInFlight,
    PayloadError,
    QueueExists,
    QueueInUse,
    RunActive,
    RunExists,
    SchemaMissing,
    ShardsChanged,
    StartThrottled,
    TransientDatabaseError,
    UnknownFlow,
    UnknownQueue,
)
from holdfast.store.port.transactions import sqlstate_of
from holdfast.values.moments import to_datetime

# By SQLSTATE, or by its class: the first two characters.
_ERRORS: Final[dict[str, type[HoldfastError]]] = {
    "40001": TransientDatabaseError,  # serialization failure
    "40P01": TransientDatabaseError,  # deadlock
    "55P03": LockTimeout,
    "57014": TransientDatabaseError,  # statement timeout
    "08": DatabaseUnavailable,  # connection lost
    "53": DatabaseUnavailable,  # out of connections, memory, disk
    "57": DatabaseUnavailable,  # shutting down, starting up
    "58": DatabaseUnavailable,  # trouble below the server
    "28": DatabaseUnavailable,  # login refused
    "25006": DatabaseUnavailable,  # read-only: a standby, until it is promoted
    "3D000": DatabaseUnavailable,  # no such database
    "55000": DatabaseUnavailable,  # it takes no connections: `alter database … allow_connections`
    "42501": InsufficientRights,
    "3F000": SchemaMissing,
    "42P01": SchemaMissing,
    "42883": SchemaMissing,
    "22004": InvalidInput,  # our functions refuse NULL
    "22023": InvalidInput,  # our functions refuse a value that is not allowed
    "22": PayloadError,
    "23": PayloadError,
    "54": PayloadError,  # beyond a limit of the server: too long, too deeply nested
    "HF003": UnknownFlow,
    "HF005": FlowInUse,
    "HF008": ConfigurationError,
    "HF009": ShardsChanged,
    "HF010": ConfigurationError,
    "HFQ01": UnknownQueue,
    "HFQ02": QueueExists,
    "HFQ03": QueueInUse,
    "HFQ04": MessageInFlight,
}

# A call that began before a migration, and meets a function that was replaced by it: one of those
# that functions alone call, one whose number it knew, or one that has other columns now.
_REPLACED: Final = {
    "42883": re.compile(r"function (\w+|\"[^\"]+\")\._\w+\("),
    "XX000": re.compile("cache lookup failed for function"),
    "42804": re.compile("structure of query does not match function result type"),
}

# Their messages are those of our own functions.
_OURS: Final = (InvalidInput, UnknownFlow, UnknownQueue, QueueExists, QueueInUse, MessageInFlight)

# What happened to the call; put before the message of the server.
_MEANINGS: Final[dict[type[HoldfastError], str]] = {
    TransientDatabaseError: "the database stopped the call, which may be made again: ",
    LockTimeout: (
        "another transaction holds what the call needs (`holdfast doctor` names open "
        "transactions); the call may be made again: "
    ),
    InsufficientRights: "the role lacks a right that the call needs: ",
    SchemaMissing: "the schema lacks what the call needs (run `holdfast migrate`): ",
    PayloadError: "the database cannot store a value of the call: ",
    DatabaseError: "the database refuses the call: ",
}

_READ_ONLY: Final = "25006"
_READ_ONLY_TEXT: Final = "the database takes no writes now (`holdfast doctor` says why): "

# What the driver says of a value that it cannot send as the type of the parameter.
_MISFIT: Final = re.compile(r"invalid input for query argument \$(\d+): (.*)", re.DOTALL)

# What the driver raises: errors of the server and its own errors.
FOREIGN: Final = (
    asyncpg.PostgresError,
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

# Raised by starts, with a run's id as the detail, or the moment from which a start is possible.
_OTHER_WORKFLOW: Final = "HF001"
_RUN_ACTIVE: Final = "HF006"
_THROTTLED: Final = "HF007"

# After these errors of the server a connection is useless: its session has ended, or the server has
# become a standby.
_BROKEN: Final = (
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresConnectionError,
    asyncpg.ReadOnlySQLTransactionError,
)

# The driver raises these if the end of the session had arrived before the call was sent.
_NOT_SENT: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError)
_IDLE_SESSION: Final = "57P05"  # the cause of what the driver raises
_LOST_TEXT: Final = "cannot switch to state"  # in which numbers of the driver follow
_CLOSED_TEXT: Final = "connection is closed"
_NOT_SENT_TEXTS: Final = (_LOST_TEXT, _CLOSED_TEXT, f"the underlying {_CLOSED_TEXT}")

# What libraries say that do not let code end the transaction that it was called in.
_REFUSING: Final = ("ProgrammingError", "TransactionManagementError")
_REFUSED_ENDS: Final = (
    "Explicit commit() forbidden",  # psycopg
    "Explicit rollback() forbidden",
    "This is forbidden when an 'atomic' block is active",  # Django
)
# How the libraries of transactional steps say that their session has ended.
_IDLE: Final = "25P03"
_GONE: Final = "08003"  # says asyncpg, and not what the server said
_LIBRARIES: Final = ("asyncpg", "psycopg", "sqlalchemy", "django")


def translate(error: Exception, function: str = "") -> HoldfastError:
    """Return the error of holdfast for one of the driver or of the server.

    `function` is the function of SQL that was called, "" for other statements.
    """
    if isinstance(error, asyncpg.DataError) and (misfit := _MISFIT.fullmatch(str(error))):
        return _not_taken(function, int(misfit[1]), misfit[2])
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error)
    return _from_driver(error)


def _not_taken(function: str, number: int, value: str) -> InvalidInput:
    """Return the error for a value that the driver cannot send; it names the argument."""
    names = load_scripts().parameters(function)
    name = names[number - 1] if number <= len(names) else f"argument {number}"
    of = f" ({function})" if function else ""
    return InvalidInput(f"{name}{of} cannot be {value}: nothing was sent to the database")


def error_class(error: asyncpg.PostgresError) -> type[HoldfastError]:
    """Return the class of holdfast's error for an error of the server."""
    code = error.sqlstate or ""
    if code in _REPLACED and _REPLACED[code].match(str(error)):
        return TransientDatabaseError
    other = DatabaseUnavailable if _has_ended(error) else DatabaseError
    return _ERRORS.get(code) or _ERRORS.get(code[:2]) or other


def _has_ended(error: asyncpg.PostgresError) -> bool:
    """Return True if the session has ended with the error: by transaction_timeout, by a pooler."""
    return error.severity_en in ("FATAL", "PANIC")


def _from_server(error: asyncpg.PostgresError) -> HoldfastError:
    code = error.sqlstate or ""
    if code == _OTHER_WORKFLOW:
        return RunExists(UUID(error.detail), str(error))
    if code == _RUN_ACTIVE:
        return RunActive(UUID(error.detail), str(error))
    if code == _THROTTLED:
        return StartThrottled(to_datetime(int(error.detail or 0)), str(error))
    kind = error_class(error)
    if kind in _OURS:
        return kind(str(error))
    meaning = _READ_ONLY_TEXT if code == _READ_ONLY else _MEANINGS.get(kind, "")
    text = f"{meaning}{error} ({code})" if code else str(error)
    return DatabaseUnavailable(text, unanswered=True) if _is_unanswered(error) else kind(text)


def _is_unanswered(error: asyncpg.PostgresError) -> bool:
    """Return True if the session has ended within the call, and not for what the call is.

    A shutdown ends a commit that waits for a standby. Poolers have codes of their own.
    """
    code = error.sqlstate or ""
    is_known = code in _ERRORS or code[:2] in _ERRORS
    return code.startswith(("08", "57P01")) or (_has_ended(error) and not is_known)


def _from_driver(error: Exception) -> HoldfastError:
    if isinstance(error, asyncpg.ClientConfigurationError):
        return InvalidDatabaseURL(str(error))
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return PayloadError(str(error))  # the driver could not encode a parameter
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return DatabaseUnavailable(
            "none of the database's hosts accepts writes now, or is what target_session_attrs wants"
        )
    if isinstance(error, TimeoutError):
        return DatabaseUnavailable("the time limit was reached", unanswered=True)
    reason = str(error) or type(error).__name__
    if reason.startswith(_LOST_TEXT):
        reason = "the connection was lost before the call"
    return DatabaseUnavailable(f"the database cannot be reached: {reason}")


def was_not_sent(error: BaseException) -> bool:
    """Return True if a call came after the end of its session: then it may be repeated."""
    if _IDLE_SESSION in (sqlstate_of(error), sqlstate_of(error.__cause__)):
        return True  # the server waited for a call when it ended the session
    return isinstance(error, _NOT_SENT) and str(error).startswith(_NOT_SENT_TEXTS)


def was_undone(error: Exception) -> bool:
    """Return True if the server has ended a call because of another one: it may succeed at once.

    Not for a lock that was waited for too long: who sets a limit has something else to do. Nor for
    a statement that takes too long.
    """
    if not isinstance(error, asyncpg.PostgresError) or error.sqlstate == "57014":
        return False
    return error_class(error) is TransientDatabaseError


def is_sound(error: BaseException) -> bool:
    """Return True if a connection can be used after a call that ended with this error."""
    if isinstance(error, asyncpg.QueryCanceledError):
        return True  # it is of the class of those that end sessions
    if isinstance(error, asyncpg.PostgresError):
        return not isinstance(error, _BROKEN) and not _has_ended(error)
    # The driver could not encode a parameter: nothing was sent.
    return isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)


def is_of_an_end(error: Exception) -> bool:
    """Return True if psycopg or Django has refused to end the transaction, as the code wanted."""
    return type(error).__name__ in _REFUSING and str(error).startswith(_REFUSED_ENDS)


def ended_by_server(error: Exception) -> Exception | None:
    """Return the error that says why the session has ended, None if the error is another one."""
    if type(error).__module__.partition(".")[0] not in _LIBRARIES:
        return None
    idle, code = "its code sent nothing for longer than", sqlstate_of(error)
    if code != _IDLE:
        if code != _GONE and not any(text in str(error) for text in (_LOST_TEXT, _CLOSED_TEXT)):
            return None
        idle = f"it was lost, or {idle}"
    setting = "idle_in_transaction_session_timeout"
    return DatabaseUnavailable(
        f"the session of a transaction has ended before its commit: {idle} {setting}, "
        f"{IDLE_SECONDS} s by default. Do what takes long in a step before it, or set {setting} "
        "in the database URL"
    )
