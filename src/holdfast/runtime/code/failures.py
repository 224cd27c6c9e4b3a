"""The failures of a run's calls, and those that ended it: a retry makes only these calls again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, cast

from holdfast.errors import CallFailed
from holdfast.types import Value


class Fatal(Value, frozen=True, gc=False):
    """The calls that ended a run by failing, and how many entries its code had seen by then."""

    keys: tuple[str, ...] = ()
    seen: int = 0


class Failures:
    """The number of log entries that a run's code had seen at each failure of a call.

    `raised_at` is that number when the run's own code raised.
    """

    __slots__ = ("_arrived", "_told", "raised_at")

    def __init__(self) -> None:
        self._arrived: dict[str, int] = {}  # failures that the code has not been given yet
        self._told: dict[str, int] = {}
        self.raised_at = -1

    def arrive(self, key: str, position: int) -> None:
        """Record that the log has the failure of a call, which the code has not been given."""
        self._arrived[key] = position

    def tell(self, key: str, position: int) -> None:
        """Record that the code is given a failure."""
        self._arrived.pop(key, None)
        self._told.setdefault(key, position)

    def fatal(
        self, error: BaseException, tasks: Iterable[asyncio.Task[Any]], called_at: int
    ) -> Fatal:
        """Return the failures that ended the run, which has raised `error`.

        These are the failures that `error` contains (its causes, the members of its group), and
        those that were being handled when it was raised, if the code had seen no further entry.
        Other failures count if the code did not handle them: they are not earlier than the first of
        these, the code made no call since (`called_at` is where it made its last one), and they
        ended a task or were never given to the code.
        """
        told = self._told
        found = {
            key
            for key, at_once in _raised_from(error)
            if key in told and (not at_once or told[key] == self.raised_at)
        }
        if not found:
            return Fatal()
        seen = min(told[key] for key in found)
        ended_tasks = {key for task in tasks for key in _keys_of(task)} & told.keys()
        beside = {key: told[key] for key in ended_tasks} | self._arrived
        since = max(seen, called_at + 1)
        found |= {key for key, position in beside.items() if position >= since}
        return Fatal(tuple(sorted(found)), seen)


def _raised_from(error: BaseException) -> Iterator[tuple[str, bool]]:
    """Yield the failed calls that led to an error, with True if one was only being handled."""
    left: list[tuple[BaseException, bool]] = [(error, False)]
    visited: set[int] = set()
    while left:
        one, handled = left.pop()
        if id(one) in visited:
            continue
        visited.add(id(one))
        if isinstance(one, CallFailed):
            yield one.key, handled
        if isinstance(one, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", one)
            left += [(member, handled) for member in group.exceptions]
        if one.__context__ is not None and one.__context__ is not one.__cause__:
            left.insert(0, (one.__context__, True))
        if one.__cause__ is not None:
            left.append((one.__cause__, handled))


def _keys_of(task: asyncio.Task[Any]) -> Iterator[str]:
    """Yield the failed calls that ended a task. asyncio still reports its error if nothing does."""
    if task.done() and not task.cancelled():
        error = cast("BaseException | None", getattr(task, "_exception", None))
        if error is not None:
            yield from (key for key, at_once in _raised_from(error) if not at_once)
