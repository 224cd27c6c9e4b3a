"""Exit codes, and the exit code of each error."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Final

from holdfast.errors import (
    AmbiguousWorkflow,
    ApprovalNotFound,
    ConfigurationError,
    DatabaseError,
    HoldfastError,
    MessageNotFound,
    PayloadError,
    ResultTimeout,
    RunNotFound,
    TokenUnknown,
    UnknownBuild,
    UnknownFlow,
    UnknownQueue,
    UnknownSchedule,
    UnknownWorkflow,
)

if TYPE_CHECKING:
    import click

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
DATABASE: Final = 3
NOT_FOUND: Final = 4
TIMED_OUT: Final = 5
INTERRUPTED: Final = 130

MEANINGS: Final = (
    (OK, "done"),
    (FAILED, "the run failed, a check failed, or nothing was changed"),
    (USAGE, "the command, its input or the app cannot be used as given"),
    (DATABASE, "the database cannot be used"),
    (NOT_FOUND, "there is no such run, approval, token, flow, schedule, queue, message or build"),
    (TIMED_OUT, "the time limit was reached; the run continues"),
    (INTERRUPTED, "ended by Ctrl-C"),
)


class Refusal(HoldfastError):
    """A command cannot do what it was asked to do; it exits with `code`."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def code_for(error: HoldfastError) -> int:
    """Return the exit code of a command that ends with this error."""
    if isinstance(error, Refusal):
        return error.code
    if isinstance(error, DatabaseError):
        return DATABASE
    if isinstance(
        error,
        RunNotFound
        | ApprovalNotFound
        | TokenUnknown
        | UnknownBuild
        | UnknownFlow
        | MessageNotFound
        | UnknownQueue
        | UnknownSchedule,
    ):
        return NOT_FOUND
    if isinstance(error, ResultTimeout):
        return TIMED_OUT
    if isinstance(error, AmbiguousWorkflow | ConfigurationError | PayloadError | UnknownWorkflow):
        return USAGE
    return FAILED


def end_at_sigterm(context: click.Context) -> None:
    """End the command at SIGTERM with code 0, until it has a handler of its own.

    It may import an app for a minute before. Nothing is raised: code that is imported could catch
    it. In a container the first process would not be ended at all.
    """

    def end(number: int, frame: FrameType | None) -> None:
        for each in (sys.stdout, sys.stderr):
            with suppress(Exception):  # it was interrupted within a write, or is closed
                each.flush()
        os._exit(OK)

    before = signal.signal(signal.SIGTERM, end)
    context.call_on_close(lambda: signal.signal(signal.SIGTERM, before))
