"""The ledger of the exceptions that a run's own code has raised, and while handling which it acts.

When code makes a call or waits while it handles such an exception, or a task ends with one, an
entry says, once each time that it was raised, of which type it was, which function has raised it,
and how many entries the code had seen. An exception is unexplained if older code passed the place,
and neither handled one of that type there, nor raised as many of them in that function: the code
has changed. While a new call is open that is made because of it, or if the code ends because of it,
the run is stuck. The next attempt of a run has no entries for what was copied. So until it has made
a call of which the last one failed, nothing explains an exception, as older code passed all that.
"""

from __future__ import annotations

import asyncio
import contextlib
import dis
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, cast

import msgspec

from holdfast.errors import CallFailed, InvalidInput, UpdateFailed, UpdateRejected
from holdfast.runtime.code.raised import Raised
from holdfast.runtime.code.run import Ledger, Run
from holdfast.runtime.code.values import MISFITS, Values
from holdfast.runtime.loop.causes import causes, is_run_cancel
from holdfast.runtime.loop.tasks import WorkflowTask
from holdfast.runtime.loop.user_code import is_user_code

# The log or the code of others explains these. The members of a group are looked at by themselves.
_EXPLAINED: Final = (CallFailed, UpdateFailed, UpdateRejected, BaseExceptionGroup)
_LEAVING: Final = (asyncio.CancelledError, GeneratorExit)  # a task or a generator
_RAISE: Final = dis.opmap["RAISE_VARARGS"]
_LEAVE: Final = cast("Any", contextlib.aclosing).__aexit__.__code__
_KEPT: Final = 16  # exceptions that are known; one that is forgotten is recorded once more


class Misraised(NamedTuple):
    """A new call because of an exception that older code did not raise, while it `is_open`."""

    key: str
    error: BaseException
    is_open: Callable[[], bool]


class Caught(Ledger):
    """The exceptions that the code has raised itself, and that ended a task or were handled."""

    __slots__ = (
        *("_calls", "_ended", "_known", "_run", "_unexplained", "_unsaid", "_untried"),
        "cancelled",
    )

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[int, tuple[BaseException, TracebackType | None]] = {}  # by id
        self._unsaid: list[Sequence[Raised]] = []  # of tasks: recorded when the code is blocked
        # those that older code did not raise, and the last that ended a task, with its place
        self._unexplained: list[BaseException] = []
        self._untried: list[BaseException] = []  # before a call of which the last one failed
        self._ended: tuple[int, BaseException] | None = None
        self._calls: list[Misraised] = []
        self.cancelled: BaseException | None = None

    @property
    def misraised(self) -> Misraised | None:
        """The first new call because of an exception that older code did not raise."""
        open_calls = (call for call in self._calls if call.is_open())
        return next((call for call in open_calls if self._is_unexplained(call.error)), None)

    def note_call(self, key: str, is_open: Callable[[], bool] | None) -> None:
        """Record that the code makes a call while it handles an exception.

        `is_open` says if the call, which the log did not have when it was made, is still open.
        """
        self.note_wait()
        if is_open is not None and (cause := self._cause(_handled())) is not None:
            self._calls.append(Misraised(key, cause, is_open))

    def note_message(self, name: str) -> None:
        """Record that the code waits for a message while it handles an exception.

        No log has that. So before the calls that an attempt makes again it may be an old wait.
        """
        self.note_wait()
        cause = self._cause(_handled())
        if cause is not None and _has(self._unexplained, cause):
            self._calls.append(Misraised(f"wait:{name}", cause, lambda: True))

    def note_wait(self) -> None:
        """Record that the code makes a call, or waits, while it handles an exception."""
        error, loop = _handled(), self._run.loop
        if error is None or error is loop.ambient or loop.closing:
            return
        if raised := self._learn(error):
            self._run.ledger(Values).record_caught(raised)

    def note_end(self, error: BaseException) -> None:
        """Record that a task has ended with an exception."""
        if self._run.loop.closing:
            return
        if raised := self._learn(error):
            self._unsaid.append(raised)
        if (found := self.find_untried(error)) is not None:
            self._ended = self._run.history.position, found

    def note_cancelled(self, error: BaseException) -> None:
        """Keep what older code did not raise, and the code was handling when a cancel ended it."""
        if isinstance(error, asyncio.CancelledError):
            self.cancelled = self.find(error)

    def find(self, error: BaseException | None) -> BaseException | None:
        """Return what has led to an error and was not raised by older code, None if nothing."""
        if error is None or not self._unexplained:
            return None
        return next((one for one in self._own(error) if _has(self._unexplained, one)), None)

    def find_untried(self, error: BaseException) -> BaseException | None:
        """Return the same, or what an attempt has raised before it has made a call again."""
        if not (self._unexplained or self._untried):
            return None
        return next(filter(self._is_unexplained, self._own(error)), None)

    def _is_unexplained(self, error: BaseException) -> bool:
        if _has(self._unexplained, error):
            return True
        return bool(self._run.history.left_out) and _has(self._untried, error)

    def flush(self) -> None:
        """Record, when the code is blocked, what has ended tasks; not if the code has raised."""
        unsaid, self._unsaid = self._unsaid, []
        history = self._run.history
        if history.failures is None or history.failures.raised_at < 0:
            for raised in unsaid:
                self._run.ledger(Values).record_caught(raised)

    def _learn(self, error: BaseException) -> Sequence[Raised]:
        """Take note of what led to an error; return what the log has to say of it, and does not."""
        new = [one for one in self._own(error) if self._is_new(one)]
        if not new:
            return ()
        raised = [Raised(type(one).__name__, _function(one)) for one in new]
        history, caught = self._run.history, self._run.ledger(Values).caught
        position = history.position
        caught.note(position, raised)
        if not history.left_out:
            self._untried.clear()
        elif position <= history.forked:
            self._untried += new
        if self._names:
            if not history.has_proven:
                return () if caught.has_all(position, raised) else raised
            self._unexplained += self._not_in_log(new, raised)
        elif caught.has_too_few:
            if not history.has_proven:
                return raised
            if history.tells_caught != "nothing" and position > caught.last:
                self._unexplained += new
        return ()

    def _is_new(self, error: BaseException) -> bool:
        """Take note of an exception; return True if it was raised since, or is not known."""
        known, at = self._known.get(id(error)), _raised_at(error)
        if known is not None and (known[1] is at or not self._names):
            return False
        self._known[id(error)] = error, at
        if len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        return True

    def _not_in_log(
        self, new: Sequence[BaseException], raised: Sequence[Raised]
    ) -> Iterable[BaseException]:
        """Return the exceptions that older code has not raised.

        One that is raised from an explained one is explained, and so is what led to one that is.
        """
        position, caught = self._run.history.position, self._run.ledger(Values).caught
        left = {
            id(one): one
            for one, each in zip(new, raised, strict=True)
            if not (caught.has_at(position, each) or caught.has_as_often(each))
        }
        for one in reversed(new):
            cause = one.__cause__
            if cause is None or id(cause) not in self._known or id(cause) in left:
                continue
            if not self._is_unexplained(cause):
                left.pop(id(one), None)
        for one in new:
            if id(one) not in left:
                left.pop(id(one.__cause__), None)
                left.pop(id(one.__context__), None)
        return left.values()

    @property
    def _names(self) -> bool:
        """True if the log says which exceptions of its own the code has handled."""
        run = self._run
        return run.history.tells_caught == "which" and run.ledger(Values).caught.are_named

    def _cause(self, error: BaseException | None) -> BaseException | None:
        """Return the unexplained exception that is handled, or whose task has ended others."""
        found = None if error is None else self.find_untried(error)
        if found is None and self._ended is not None and isinstance(error, asyncio.CancelledError):
            position, ended = self._ended
            if position == self._run.history.position and not is_run_cancel(error):
                return ended
        return found

    def _own(self, error: BaseException) -> Iterator[BaseException]:
        """Yield what the code itself has raised of an error and all that led to it.

        Earlier releases have no entries for an InvalidInput, nor for what is not an Exception.
        """
        within = {id(None)}  # what holdfast itself has made one of
        for one, _ in causes(error, self._run.loop.ambient):
            if isinstance(one, InvalidInput) or id(one) in within:
                if id(one) not in within and one not in MISFITS and self._names:
                    yield one
                within |= {id(one.__cause__), id(one.__context__)}
            elif isinstance(one, _EXPLAINED) or _is_leaving(one, self._names):
                within.add(id(one.__cause__))
            elif not isinstance(one.__cause__, asyncio.CancelledError):  # else it timed out
                yield one


def _has(errors: Sequence[BaseException], error: BaseException) -> bool:
    return any(error is each for each in errors)  # they may be equal


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


def _is_leaving(error: BaseException, names: bool) -> bool:
    """Return True for what only ends a task, a generator or a run, if the code has not raised it.

    Earlier releases took all that is not an Exception for this: their logs have no `names`.
    """
    if isinstance(error, Exception):
        return False
    if not names or type(error).__module__.startswith("holdfast."):
        return True
    return isinstance(error, _LEAVING) and not _is_raised_by_code(error)


def _is_raised_by_code(error: BaseException) -> bool:
    """Return True if a `raise` of the user's code made an error, which was not thrown into it."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and _is_raise(at) and is_user_code(at.tb_frame.f_code.co_filename)


def _is_raise(at: TracebackType) -> bool:
    return at.tb_frame.f_code.co_code[at.tb_lasti] == _RAISE


def _raised_at(error: BaseException) -> TracebackType | None:
    """Return where an exception was last raised: one that is raised again keeps its traceback."""
    found = error.__traceback__
    while found is not None and found.tb_next is not None and not _is_raise(found):
        found = found.tb_next
    return found


def _function(error: BaseException) -> str:
    at = _raised_at(error)
    return "" if at is None else at.tb_frame.f_code.co_qualname


class Observer(msgspec.Struct, eq=False):
    """What a run's loop tells of tasks that begin and end, and of waits, because of exceptions."""

    _run: Run

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
