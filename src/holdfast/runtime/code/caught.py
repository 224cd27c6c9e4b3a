"""The ledger of the exceptions that a run's own code has raised, and while handling which it acts.

When code makes a call or waits while it handles such an exception, or a task ends with one, an
entry says, once for each, how many entries the code had seen. If older code passed the place, and
the log has neither as many of them nor one here or later, the code has changed: the exception is
unexplained. While a new call is open that is made because of it, or if the code ends because of it,
the run is stuck.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, cast

from holdfast.errors import CallFailed, DeterminismError, InvalidInput, UpdateFailed, UpdateRejected
from holdfast.runtime.code.run import Ledger, Run
from holdfast.runtime.code.values import Values
from holdfast.runtime.loop.causes import causes, is_run_cancel
from holdfast.runtime.loop.tasks import WorkflowTask

# The log or the code of others explains these. The members of a group are looked at by themselves.
_EXPLAINED: Final = (
    *(CallFailed, UpdateFailed, UpdateRejected, InvalidInput, DeterminismError),
    ExceptionGroup,
)
_LEAVE: Final = cast("Any", contextlib.aclosing).__aexit__.__code__
_KEPT: Final = 16  # exceptions that are known; one that is forgotten is recorded once more


class Misraised(NamedTuple):
    """A new call because of an exception that older code did not raise, while it `is_open`."""

    key: str
    error: BaseException
    is_open: Callable[[], bool]


class Caught(Ledger):
    """The exceptions that the code has raised itself, and that ended a task or were handled."""

    __slots__ = ("_calls", "_ended", "_known", "_run", "_unexplained", "_unsaid")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[int, BaseException] = {}  # by id
        self._unsaid = 0  # how many of tasks to record when the code is blocked
        # those that older code did not raise, and the last that ended a task, with its place
        self._unexplained: list[BaseException] = []
        self._ended: tuple[int, BaseException] | None = None
        self._calls: list[Misraised] = []

    @property
    def misraised(self) -> Misraised | None:
        """The first new call because of an exception that older code did not raise."""
        return next((call for call in self._calls if call.is_open()), None)

    def note_call(self, key: str, is_open: Callable[[], bool] | None) -> None:
        """Record that the code makes a call while it handles an exception.

        `is_open` says if the call, which the log did not have when it was made, is still open.
        """
        self.note_wait()
        if is_open is not None and (cause := self._cause(_handled())) is not None:
            self._calls.append(Misraised(key, cause, is_open))

    def note_wait(self) -> None:
        """Record that the code makes a call, or waits, while it handles an exception."""
        error, loop = _handled(), self._run.loop
        if error is None or error is loop.ambient or loop.closing:
            return
        if self._learn(error):
            self._run.ledger(Values).record_caught(self._run.history.position)

    def note_end(self, error: BaseException) -> None:
        """Record that a task has ended with an exception."""
        if self._run.loop.closing:
            return
        self._unsaid += self._learn(error)
        if (found := self.find(error)) is not None:
            self._ended = self._run.history.position, found

    def find(self, error: BaseException | None) -> BaseException | None:
        """Return what has led to an error and was not raised by older code, None if nothing."""
        if error is None or not self._unexplained:
            return None
        ids = {id(each) for each in self._unexplained}
        return next((one for one in self._own(error) if id(one) in ids), None)

    def flush(self) -> None:
        """Record, when the code is blocked, what has ended tasks; not if the code has raised."""
        unsaid, self._unsaid = self._unsaid, 0
        history = self._run.history
        if history.failures is None or history.failures.raised_at < 0:
            for _ in range(unsaid):
                self._run.ledger(Values).record_caught(history.position)

    def _learn(self, error: BaseException) -> bool:
        """Take note of what led to an error; return True if the log has to say so, and does not."""
        new = [one for one in self._own(error) if id(one) not in self._known]
        if not new:
            return False
        for one in new:
            self._known[id(one)] = one
            if len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
        history, values = self._run.history, self._run.ledger(Values)
        places = values.caught
        values.noted += 1
        if values.noted <= len(places):
            return False
        if not history.has_proven:
            return True
        if history.tells_caught and history.position > max(places, default=-1):
            self._unexplained += new
        return False

    def _cause(self, error: BaseException | None) -> BaseException | None:
        """Return the unexplained exception that is handled, or whose task has ended others."""
        found = self.find(error)
        if found is None and self._ended is not None and isinstance(error, asyncio.CancelledError):
            position, ended = self._ended
            if position == self._run.history.position and not is_run_cancel(error):
                return ended
        return found

    def _own(self, error: BaseException) -> Iterator[BaseException]:
        """Yield what the code itself has raised of an error and all that led to it.

        What is not an Exception ends a task, a generator or a run.
        """
        within = {id(None)}  # what holdfast itself has made one of
        for one, _ in causes(error, self._run.loop.ambient):
            if isinstance(one, InvalidInput) or id(one) in within:
                within |= {id(one.__cause__), id(one.__context__)}
            elif isinstance(one, _EXPLAINED) or not isinstance(one, Exception):
                within.add(id(one.__cause__))
            elif not isinstance(one.__cause__, asyncio.CancelledError):  # else it timed out
                yield one


def _handled() -> BaseException | None:
    """Return the exception that the code handles, or because of which it closes a generator.

    Python does not tell a generator why `aclosing` closes it.
    """
    error = sys.exception()
    frame = inspect.currentframe() if isinstance(error, GeneratorExit) else None
    while frame is not None and frame.f_code is not _LEAVE:
        frame = frame.f_back
    if frame is None:
        return error
    _, reason, _ = frame.f_locals.get("exc_info", (None, None, None))
    return cast("BaseException | None", reason)


class Observer:
    """What a run's loop tells of tasks that begin and end, and of waits, because of exceptions."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def begin(self, task: WorkflowTask[Any]) -> None:
        if sys.exception() is not None:
            caught = self._run.ledger(Caught)
            caught.note_call(f"begin {task.scope.path}", lambda: not task.done())
        task.add_done_callback(self._end)

    def wait(self) -> None:
        self._run.ledger(Caught).note_wait()

    def _end(self, task: asyncio.Future[object]) -> None:
        error: BaseException | None = getattr(task, "_exception", None)  # it stays unseen
        if error is not None:
            self._run.ledger(Caught).note_end(error)
