"""Tasks, futures and handles of a workflow's loop, and the scopes in which their calls get keys.

asyncio keeps tasks and futures in sets. Sets of addresses iterate in another order on replay,
so ours hash by the order of their creation, plus a salt from the run: without it the tasks of
different runs would collide in asyncio's own set of all tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import sys
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")


class NumberingLoop(asyncio.AbstractEventLoop):
    """An event loop that numbers what is made on it."""

    def next_hash(self) -> int:
        """Number a new task, future or timer."""
        raise NotImplementedError


class Scope:
    """Counts the ordinals of keys: one for each asyncio task, one for plain callbacks.

    A key is the path of its scope and the call's name; the second call of a name in a scope is
    `name#2`. So a change in one branch of a workflow never shifts the keys of another.
    """

    __slots__ = ("_counts", "_random", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._counts: dict[str, int] | None = None  # most scopes never name anything
        self._random: random.Random | None = None

    def key(self, name: str, counter: str | None = None) -> str:
        """Take the next key of this name; names with another `counter` are counted apart."""
        counts, counter = self._counts, counter or name
        if counts is None:
            counts = self._counts = {}
        ordinal = counts[counter] = counts.get(counter, 0) + 1
        leaf = name if ordinal == 1 else f"{name}#{ordinal}"
        return f"{self.path}/{leaf}" if self.path else leaf

    def next_key(self, name: str) -> str:
        """Return what the next key of this name is, without taking it."""
        ordinal = 1 + (self._counts or {}).get(name, 0)
        leaf = name if ordinal == 1 else f"{name}#{ordinal}"
        return f"{self.path}/{leaf}" if self.path else leaf

    def child(self, name: str) -> Scope:
        """Open the scope of a task; tasks are counted apart from calls."""
        return Scope(self.key(name, f"{name}/"))

    def random(self, seed: str) -> random.Random:
        """Return this scope's source of chance, the same on every replay."""
        if self._random is None:
            self._random = random.Random(f"{seed}/{self.path}")
        return self._random


class Evicted(BaseException):
    """Raised by what a workflow may not do, while an instance is closed; never leaves that."""


class WorkflowFuture(asyncio.Future[_T]):
    """A future that hashes by the order of creation."""

    __slots__ = ("_hash",)

    def __init__(self, loop: NumberingLoop) -> None:
        self._hash = loop.next_hash()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._hash


class WorkflowTask(asyncio.Task[_T]):
    """A task that hashes by the order of creation and has a scope for keys."""

    __slots__ = ("_hash", "scope")

    def __init__(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        loop: NumberingLoop,
        scope: Scope,
        **options: Any,
    ) -> None:
        # First: an eager task runs inside its constructor.
        self._hash, self.scope = loop.next_hash(), scope
        super().__init__(coro, loop=loop, **options)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._hash


class NeverBegun(Coroutine[Any, Any, _T]):
    """The code of a task that is created while its run is closed: there is none."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, _T]:
        raise Evicted

    def send(self, value: object, /) -> NoReturn:
        raise Evicted

    def throw(self, *error: object) -> NoReturn:
        raise Evicted

    def close(self) -> None:
        """Return at once."""


class DeferredCoroutine(Coroutine[object, None, object]):
    """A coroutine that makes the one that it runs when it is first awaited."""

    __slots__ = ("coroutine",)

    coroutine: Coroutine[object, None, object] | None


def inner_coroutine(coroutine: object) -> object:
    """Return the coroutine that a task runs, also if a deferred one stands for it."""
    return coroutine.coroutine if isinstance(coroutine, DeferredCoroutine) else coroutine


@contextlib.contextmanager
def acting_as(task: WorkflowTask[Any]) -> Generator[None]:
    """Make a task the current one of its loop, which must be the running one.

    `asyncio.timeout` and the like raise an error at once without a current task.
    """
    loop = task.get_loop()
    if sys.version_info >= (3, 12):
        before = asyncio.tasks._swap_current_task(loop, task)
    else:
        before = None
        asyncio.tasks._enter_task(loop, task)
    try:
        yield
    finally:
        if sys.version_info >= (3, 12):
            asyncio.tasks._swap_current_task(loop, before)
        else:
            asyncio.tasks._leave_task(loop, task)


class WorkflowTimer(asyncio.TimerHandle):
    """A durable timer.

    `delay` is microseconds from the run's time at its creation. `due_at` is its moment if the code
    names one. The keeper of the timers sets `fire_at`, the moment when it is due, `recorded`, if
    the log has it, and `mark`, how much of the log must be durable for the timer to be certain.
    """

    __slots__ = ("delay", "due_at", "fire_at", "key", "mark", "order", "recorded")

    def __init__(
        self,
        key: str,
        delay: int,
        when: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: NumberingLoop,
        context: contextvars.Context | None,
        due_at: int | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.key, self.delay, self.order = key, delay, loop.next_hash()
        self.due_at = due_at
        self.fire_at: int | None = None
        self.recorded = False
        self.mark = 0
