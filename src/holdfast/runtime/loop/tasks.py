"""Tasks, futures and handles of a workflow's loop, and the scopes in which their calls get keys.

asyncio keeps tasks and futures in sets. If they hash by address, these sets iterate in another
order on each replay. So ours hash by the order of their creation, plus a salt from the run: without
it, tasks of different runs would collide in asyncio's own set of all tasks.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import CoroutineType, TracebackType
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec

from holdfast.runtime.loop.causes import RUN_CANCEL, is_run_cancel

_T = TypeVar("_T")
_PLAIN: type[object] = CoroutineType  # without a type parameter that is unknown

# Before 3.12 asyncio's own is a function of Python, and each call of a step comes here.
current_task: Callable[[asyncio.AbstractEventLoop], asyncio.Task[Any] | None]
if sys.version_info >= (3, 12):
    current_task = asyncio.current_task
else:
    current_task = asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]


class Observer(Protocol):
    """What is told of the code's tasks and waits."""

    def begin(self, task: WorkflowTask[Any]) -> None:
        """Take note of a task that the code has created."""

    def wait(self) -> None:
        """Take note that code waits while it handles an exception."""


class NumberingLoop(asyncio.AbstractEventLoop):
    """An event loop that numbers the tasks, futures and timers that are made on it.

    `ambient` is what the worker's own code handles while it runs that of the loop.
    """

    ambient: BaseException | None = None
    observer: Observer | None = None

    def next_hash(self) -> int:
        """Return the number of a new task, future or timer: its hash."""
        raise NotImplementedError


class Scope(msgspec.Struct, eq=False):
    """Makes keys unique by counting. Each asyncio task has a scope, and plain callbacks share one.

    A key is the path of its scope and the call's name; the second call of a name in a scope is
    `name#2`. So a change in one branch of a workflow never shifts the keys of another.

    `parent` is the scope of the code that created the task, and `number` the number of the task.
    """

    path: str
    parent: Scope | None = None
    number: int = 0
    _counts: dict[str, int] | None = None  # most scopes never make a key
    _random: random.Random | None = None

    def key(self, name: str, counter: str | None = None) -> str:
        """Return a new key for this name. Calls with another `counter` are counted separately."""
        counts = self._counts
        if counter is None:
            counter = name
        if counts is None:
            counts = self._counts = {}
        ordinal = counts[counter] = counts.get(counter, 0) + 1
        leaf = name if ordinal == 1 else f"{name}#{ordinal}"
        return f"{self.path}/{leaf}" if self.path else leaf

    def former_key(
        self, name: str, before: Sequence[str], is_known: Callable[[str], bool]
    ) -> tuple[str, str] | None:
        """Take the known key that the last call of a name had under a name `before`; return both.

        It is the next call of that name, else the one with the same number, if others have no end.
        """
        counts = self._counts or {}
        numbers = [(counts.get(each, 0) + 1, each) for each in before]
        numbers += [(counts[name], each) for following, each in numbers if following < counts[name]]
        for number, each in numbers:
            leaf = each if number == 1 else f"{each}#{number}"
            key = f"{self.path}/{leaf}" if self.path else leaf
            if is_known(key):
                counts[each] = number
                return key, each
        return None

    def child(self, name: str) -> Scope:
        """Return a new scope for a task; tasks are counted separately from calls."""
        return Scope(self.key(name, f"{name}/"), self)

    def random(self, seed: str) -> random.Random:
        """Return this scope's random generator: it gives the same numbers on every replay."""
        if self._random is None:
            self._random = random.Random(f"{seed}/{self.path}")
        return self._random


class Evicted(BaseException):
    """Raised by calls of code that is being closed, to end it. Never leaves the closing."""


def note_wait(loop: object) -> None:
    """Tell a workflow's loop if the code waits while it handles an exception."""
    if sys.exception() is None or not isinstance(loop, NumberingLoop):
        return
    if loop.observer is not None:
        loop.observer.wait()


class WorkflowFuture(asyncio.Future[_T]):
    """A future that hashes by the order of creation."""

    __slots__ = ("_hash",)

    def __init__(self, loop: NumberingLoop) -> None:
        self._hash = loop.next_hash()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._hash

    def __await__(self) -> Generator[Any, None, _T]:
        note_wait(self.get_loop())
        return super().__await__()


class WorkflowTask(asyncio.Task[_T]):
    """A task that hashes by the order of creation and has a scope for keys.

    `run_cancels` counts those of its cancels that are part of the run's.
    """

    __slots__ = ("_hash", "run_cancels", "scope")

    def __init__(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        loop: NumberingLoop,
        scope: Scope,
        *,
        name: Any = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self._hash = scope.number = loop.next_hash()
        self.scope, self.run_cancels = scope, 0
        super().__init__(coro, loop=loop, name=name, context=context)
        self._log_destroy_pending = False

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the task: as a part of the run's cancel, if the code that asks handles this."""
        if msg is None and is_run_cancel(sys.exception()):
            msg = RUN_CANCEL
        known = min(self.run_cancels, self.cancelling())  # the code may have taken some back
        if not super().cancel(msg):
            return False
        self.run_cancels = known + (msg == RUN_CANCEL)
        return True

    def __hash__(self) -> int:
        return self._hash

    def __await__(self) -> Generator[Any, None, _T]:
        note_wait(self.get_loop())
        return super().__await__()


class NeverBegun(Coroutine[Any, Any, _T]):
    """The empty code of a task that is created while its run is being closed."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, _T]:
        raise Evicted

    def send(self, value: object, /) -> NoReturn:
        raise Evicted

    def throw(self, *error: object) -> NoReturn:
        raise Evicted

    def close(self) -> None:
        """Return at once."""


class Made(Protocol):
    """What a deferred call has made, of a family, under a key."""

    family: str
    key: str
    name: str


class DeferredCall(Coroutine[object, None, object]):
    """A call that can be awaited once, by itself or as a task, or not at all.

    It was made already. This cannot be a plain coroutine: Python warns of one that is never
    awaited, and one that is cancelled before it began does not notice the cancellation.
    """

    __slots__ = ("__name__", "_begin", "_hash", "_made", "_take_back", "coroutine")

    def __init__(
        self,
        loop: NumberingLoop,
        made: Made,
        begin: Callable[[asyncio.CancelledError | None], Coroutine[object, None, object]],
        take_back: Callable[[], None],
    ) -> None:
        """`begin` returns the coroutine that waits for the end of what the call has `made`.

        It is given the error if a task of the call was cancelled before it began; for any other
        error `take_back` is called before.
        """
        self.__name__, self._made, self._hash = made.name, made, loop.next_hash()
        self._begin, self._take_back = begin, take_back
        self.coroutine: Coroutine[object, None, object] | None = None  # once it is awaited

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<{self._made.family} {self._made.key}>"

    def __await__(self) -> Generator[object, None, object]:
        if self.coroutine is not None:
            raise RuntimeError(f"{self!r} was awaited before: keep its result, or use a task")
        return self._begun().__await__()

    def send(self, value: None, /) -> object:
        return self._begun().send(value)

    def throw(
        self,
        typ: BaseException | type[BaseException],
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> object:
        error = val if isinstance(val, BaseException) else typ
        error = error() if isinstance(error, type) else error
        if self.coroutine is None:
            if isinstance(error, asyncio.CancelledError):  # as a task, before it began
                self.coroutine = self._begin(error)
                return self.coroutine.send(None)
            self._take_back()
        return self._begun().throw(error)

    def close(self) -> None:
        if self.coroutine is not None:
            self.coroutine.close()

    def _begun(self) -> Coroutine[object, None, object]:
        if self.coroutine is None:
            self.coroutine = self._begin(None)
        return self.coroutine


def inner_coroutine(coroutine: object) -> object:
    """Return the coroutine that a task really runs, if a deferred call is around it."""
    # Most are of the first type, and the second check takes long.
    if not isinstance(coroutine, _PLAIN) and isinstance(coroutine, DeferredCall):
        return coroutine.coroutine
    return coroutine


def forget_waiting(task: WorkflowTask[Any]) -> None:
    """Let the future that a closed task waits for forget it, as each of them holds the other."""
    waiter: Any = getattr(task, "_fut_waiter", None)
    for callback, _ in getattr(waiter, "_callbacks", None) or ():
        if getattr(callback, "__self__", None) is task:
            waiter.remove_done_callback(callback)


class ActingAs:
    """Makes a task the current task of its loop, which must be the running loop.

    Without a current task `asyncio.timeout` and similar functions raise an error at once.
    """

    __slots__ = ("_before", "_loop", "_task")

    def __init__(self, task: WorkflowTask[Any]) -> None:
        self._task, self._loop = task, task.get_loop()

    if sys.version_info >= (3, 12):

        def __enter__(self) -> None:
            self._before = asyncio.tasks._swap_current_task(self._loop, self._task)

        def __exit__(self, *_: object) -> None:
            asyncio.tasks._swap_current_task(self._loop, self._before)
    else:

        def __enter__(self) -> None:
            asyncio.tasks._enter_task(self._loop, self._task)

        def __exit__(self, *_: object) -> None:
            asyncio.tasks._leave_task(self._loop, self._task)


class WorkflowTimer(asyncio.TimerHandle):
    """A durable timer.

    `delay` is in microseconds from the run's time at its creation. `due_at` is its moment if the
    code gives one. The keeper of the timers sets the others: `fire_at` is the moment when it is
    due, `recorded` says that the log has it, and `mark` is the number of entries of the log that
    must be durable for the timer to be certain.
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
