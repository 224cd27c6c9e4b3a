"""The failures of a run's calls, those that ended it, and what the code did because of them.

A retry makes these calls again: those that failed, and those that the code made because of it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterator
from math import inf
from typing import Any, Final, NamedTuple, cast

from holdfast.errors import CallFailed, UpdateFailed, UpdateRejected
from holdfast.runtime.loop.causes import causes
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.runtime.loop.tasks import Scope, WorkflowTask
from holdfast.types import Value

_CANCEL: Final = ""  # in the place of a key: a cancel is told to the code as a failure is
_MOST_TOLD: Final = 16


class Fatal(Value, frozen=True, gc=False):
    """The calls that ended a run by failing, and how many entries its code had seen by then.

    `after` are the calls that the code made because of these failures, and of a cancel of the run
    that came later; `handling` those that it made while it handled any failure of a call.
    """

    keys: tuple[str, ...] = ()
    seen: int = 0
    after: tuple[str, ...] = ()
    handling: tuple[str, ...] = ()


class _Told(NamedTuple):
    """The moment when the code was told of a failure.

    `position` is how many entries of the log it had seen, `calls` how many calls were noted, and
    `number` the number of the newest task. `paths` are those of the tasks that were told. The log
    had the failure when the code had seen `arrived` entries.
    """

    arrived: int
    position: int
    calls: int
    number: int
    paths: set[str]


class _Handling(NamedTuple):
    """What code was doing: how its task was cancelled, and which failures it handled."""

    by_run: bool
    is_cancelled: bool  # by something else
    handled: frozenset[str]


class _Made(NamedTuple):
    """A call that was made after a failure, and where."""

    key: str
    scope: Scope
    handling: _Handling


class Failures:
    """The failures of a run's calls, and the calls that were made since the first of them.

    `raised_at` is the number of entries that the code had seen when the run's own code raised.
    """

    __slots__ = ("_arrived", "_begun", "_loop", "_made", "_told", "raised_at")

    def __init__(self, loop: WorkflowLoop) -> None:
        self._loop = loop
        self._arrived: dict[str, int] = {}  # failures that the code has not been given yet
        self._told: dict[str, _Told] = {}
        self._made: list[_Made] = []
        self._begun: dict[str, _Handling] = {}  # tasks that began while a failure was handled
        self.raised_at = -1
        loop.note_task = self._note_task

    def arrive(self, key: str, position: int) -> None:
        """Record that the log has the failure of a call, which the code has not been given."""
        self._arrived[key] = position

    def tell(self, key: str, position: int) -> None:
        """Record that the code is given a failure."""
        arrived = self._arrived.pop(key, position)
        if key not in self._told:
            told = _Told(arrived, position, len(self._made), self._loop.last_hash, set())
            self._told[key] = told
        self.note_receiver(key)

    @property
    def told(self) -> tuple[str, ...]:
        """The calls of whose failures the code was told, without the first of many."""
        return tuple(self._told)[-_MOST_TOLD:]

    def tell_cancel(self, position: int) -> None:
        """Record that the run's own code is told of a cancel."""
        self.tell(_CANCEL, position)

    def note_receiver(self, key: str) -> None:
        """Record that the task that runs now, if one does, is given the failure of a call."""
        if key in self._told and asyncio.current_task(self._loop) is not None:
            self._told[key].paths.add(self._loop.scope().path)

    def note_call(self, key: str) -> None:
        """Record a call: it may be one that the code makes because of a failure."""
        if self._told:
            scope = self._loop.scope()
            self._made.append(_Made(key, scope, self._handling_in(scope)))

    def _note_task(self, scope: Scope) -> None:
        """Record a task that begins: without the failure that is handled it would not."""
        if self._told:
            handling = self._handling_in(self._loop.scope())
            if any(handling):
                self._begun[scope.path] = handling

    def _handling_in(self, scope: Scope) -> _Handling:
        """Return what the code that runs in a scope handles, and what led to its task."""
        task = cast("WorkflowTask[Any] | None", asyncio.current_task(self._loop))
        error = sys.exception()
        by_run = task is not None and task.run_cancels > 0
        is_cancelled = task is not None and task.cancelling() > task.run_cancels
        handled = frozenset(() if error is None else (key for key, _ in _raised_from(error)))
        begun = self._begun.get(scope.path)
        if begun is None:
            return _Handling(by_run, is_cancelled, handled)
        return _Handling(
            by_run or begun.by_run, is_cancelled or begun.is_cancelled, handled | begun.handled
        )

    def fatal(self, error: BaseException, called_at: int) -> Fatal:
        """Return the failures that ended the run, which has raised `error`.

        These are the failures that `error` contains (its causes, the members of its group), and
        those that were being handled when it was raised, if the code had seen no further entry.
        Other failures count if the code did not handle them: they are not earlier than the first of
        these, the code made no call since (`called_at` is where it made its last one), and they
        ended a task or were never given to the code. A cancel of the run that came after the first
        of these failures counts as one: a retry continues before it.
        """
        told = {key: each.position for key, each in self._told.items()}
        found = {
            key
            for key, at_once in _raised_from(error)
            if key in told and (not at_once or told[key] == self.raised_at)
        }
        if not found:
            return Fatal(handling=self._handling(has_cancel=_CANCEL in told))
        seen = min(told[key] for key in found)
        if told.get(_CANCEL, 0) > seen:
            found.add(_CANCEL)
        ended_tasks = {key for task in self._loop.tasks for key in _keys_of(task)} & told.keys()
        beside = {key: told[key] for key in ended_tasks} | self._arrived
        since = max(seen, called_at + 1)
        found |= {key for key, position in beside.items() if position >= since}
        after = tuple(self._made_after(found))
        handling = self._handling(has_cancel=_CANCEL in told.keys() - found)
        return Fatal(tuple(sorted(found - {_CANCEL})), seen, after, handling)

    def cleanup(self) -> Fatal:
        """Return what the code of a cancelled run called because of the cancel."""
        handling = self._handling(has_cancel=False)
        if _CANCEL not in self._told:
            return Fatal(handling=handling)
        after = tuple(self._made_after({_CANCEL}))
        return Fatal((), self._told[_CANCEL].position, after, handling)

    def _handling(self, *, has_cancel: bool) -> tuple[str, ...]:
        """Return the calls that the code made while it handled a failure.

        If a retry has the cancel of the run, only failures that came after it count: the retry
        makes no others again.
        """
        cancel = self._told[_CANCEL] if has_cancel else None
        made, since = self._made[cancel.calls if cancel else 0 :], cancel.position if cancel else 0
        late = {key for key, told in self._told.items() if told.arrived > since}
        return tuple(
            one.key
            for one in made
            if one.handling.is_cancelled or not one.handling.handled.isdisjoint(late)
        )

    def _made_after(self, keys: Collection[str]) -> Iterator[str]:
        """Yield the calls that the code made because it was told of the failures of `keys`.

        These are the calls that were made later than a failure: in a task that was given it, in a
        task that this one was created by, and in tasks that these created since; also calls in a
        task that is being cancelled, or that handles the failure. A task that ran beside them has
        nothing to do with the failure: what it called is kept.
        """
        first: dict[str, _Told] = {}  # by the path of a task
        known = {key: self._told[key] for key in keys if key in self._told}
        for key, told in sorted(known.items(), key=lambda each: each[1].calls):
            for path in told.paths or {key.rpartition("/")[0]}:
                while path not in first:
                    first[path] = told
                    path = path.rpartition("/")[0]
        begin = min(told.calls for told in known.values())
        for place, made in enumerate(self._made[begin:], begin):
            if (
                made.handling.is_cancelled
                or (made.handling.by_run and _CANCEL in keys)
                or not made.handling.handled.isdisjoint(keys)
                or _knows(made.scope, place, first)
            ):
                yield made.key


def _knows(scope: Scope, place: int, first: dict[str, _Told]) -> bool:
    """Return True if a call in a scope was made after its task, or one above it, was told."""
    at: Scope | None = scope
    newest: float = inf  # the number of the task below
    while at is not None:
        told = first.get(at.path)
        if told is not None and place >= told.calls and newest > told.number:
            return True
        newest, at = at.number, at.parent
    return False


def _raised_from(error: BaseException) -> Iterator[tuple[str, bool]]:
    """Yield the failed calls that led to an error, with True if one was only being handled."""
    for one, handled in causes(error):
        if isinstance(one, CallFailed | UpdateFailed | UpdateRejected) and one.key is not None:
            yield one.key, handled


def _keys_of(task: asyncio.Task[Any]) -> Iterator[str]:
    """Yield the failed calls that ended a task. asyncio still reports its error if nothing does."""
    if task.done() and not task.cancelled():
        error = cast("BaseException | None", getattr(task, "_exception", None))
        if error is not None:
            yield from (key for key, at_once in _raised_from(error) if not at_once)
