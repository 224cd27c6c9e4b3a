"""The ledger of the exceptions that a run's own code has raised, and while handling which it acts.

A call that the code makes while it handles such an exception may be a cleanup. Code that has not
changed raises it at each replay, so it leaves an entry in the log. If older code passed the place
and the log lacks the entry, older code did not raise there: the code has changed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Final

from holdfast.errors import CallFailed, DeterminismError, InvalidInput, UpdateFailed, UpdateRejected
from holdfast.runtime.code.run import Ledger, Run
from holdfast.runtime.code.values import Values
from holdfast.runtime.loop.causes import causes, is_run_cancel
from holdfast.runtime.loop.tasks import Scope

# The log or the code of others explains these. The members of a group are looked at by themselves.
_EXPLAINED: Final = (
    *(CallFailed, UpdateFailed, UpdateRejected, InvalidInput, DeterminismError),
    *(asyncio.CancelledError, BaseExceptionGroup),
)
_KEPT: Final = 16  # exceptions that are known; one that is forgotten is recorded once more


class Caught(Ledger):
    """The exceptions that the code has raised itself, and that ended a task or were handled.

    `misraised` is set by the first new call because of an exception that older code did not raise:
    the key of the call, and the exception.
    """

    __slots__ = ("_ended", "_known", "_run", "_unsaid", "misraised", "unexplained")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[int, BaseException] = {}  # by id
        self._unsaid: list[str] = []  # what to record when the code is blocked, of tasks
        # those that older code did not raise, and the last that ended a task, with its place
        self.unexplained: list[BaseException] = []
        self._ended: tuple[int, BaseException] | None = None
        self.misraised: tuple[str, BaseException] | None = None

    def note_call(self, key: str, *, is_new: bool) -> None:
        """Record that the code makes a call, or waits, while it handles an exception.

        `is_new` says that the log does not have the call.
        """
        error = sys.exception()
        if error is None or error is self._run.loop.ambient or self._run.loop.closing:
            return
        for unsaid in self._learn(error, key):
            self._run.ledger(Values).record_once(unsaid)
        if is_new and self.misraised is None and (cause := self._cause(error)) is not None:
            self.misraised = key, cause

    def note_end(self, error: BaseException, scope: Scope) -> None:
        """Record that the task of a scope has ended with an exception."""
        if self._run.loop.closing:
            return
        self._unsaid += self._learn(error, f"task {scope.path}")
        if (found := self.find(error)) is not None:
            self._ended = self._run.history.position, found

    def find(self, error: BaseException) -> BaseException | None:
        """Return what has led to an error and was not raised by older code, None if nothing."""
        if not self.unexplained:
            return None
        ids = {id(each) for each in self.unexplained}
        return next((one for one in self._own(error) if id(one) in ids), None)

    def flush(self) -> None:
        """Record, when the code is blocked, what has ended tasks; not if the code has raised."""
        unsaid, self._unsaid = self._unsaid, []
        failures = self._run.history.failures
        if failures is None or failures.raised_at < 0:
            for key in unsaid:
                self._run.ledger(Values).record_once(key)

    def _learn(self, error: BaseException, key: str) -> list[str]:
        """Take note of what led to an error; return what the log has to say of it, and lacks."""
        unsaid = list[str]()
        history, key = self._run.history, f"caught:{key}"
        for one in self._own(error):
            if id(one) in self._known:
                continue
            self._known[id(one)] = one
            if len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
            if self._run.ledger(Values).has(key):
                continue
            if history.forked < history.replayed and history.position <= history.proven:
                self.unexplained.append(one)
            else:
                unsaid = [key]
        return unsaid

    def _cause(self, error: BaseException) -> BaseException | None:
        """Return the unexplained exception that is handled, or whose task has ended others."""
        found = self.find(error)
        if found is None and self._ended is not None and isinstance(error, asyncio.CancelledError):
            position, ended = self._ended
            if position == self._run.history.position and not is_run_cancel(error):
                return ended
        return found

    def _own(self, error: BaseException) -> Iterator[BaseException]:
        """Yield what the code itself has raised of an error and all that led to it."""
        within = {id(None)}  # what holdfast itself has made one of
        for one, _ in causes(error, self._run.loop.ambient):
            if isinstance(one, InvalidInput) or id(one) in within:
                within |= {id(one.__cause__), id(one.__context__)}
            elif isinstance(one, _EXPLAINED):
                within.add(id(one.__cause__))
            elif not isinstance(one.__cause__, asyncio.CancelledError):  # else it timed out
                yield one
