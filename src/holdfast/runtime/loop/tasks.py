"""Tasks, futures and handles of a workflow's loop.

asyncio keeps tasks and futures in sets. Sets of addresses iterate in another order on replay,
so ours hash by the order of their creation, plus a salt from the run: without it the tasks of
different runs would collide in asyncio's own set of all tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from holdfast.runtime.loop.keys import Scope

if TYPE_CHECKING:
    from holdfast.runtime.loop.loop import WorkflowLoop

_T = TypeVar("_T")


class Evicted(BaseException):
    """Raised by what a workflow may not do, while an instance is closed; never leaves that."""


class WorkflowFuture(asyncio.Future[_T]):
    """A future that hashes by the order of creation."""

    __slots__ = ("_hash",)

    def __init__(self, loop: WorkflowLoop) -> None:
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
        loop: WorkflowLoop,
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
        """Nothing to do."""


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


class SoonHandle(asyncio.Handle):
    """A callback to run in this drain; built without what asyncio adds for debugging."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: WorkflowLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class WorkflowTimer(asyncio.TimerHandle):
    """A durable timer.

    `delay` is microseconds from the run's time at its creation. `fire_at` is the moment when it
    is due, None until the turn has set it; `recorded` says whether the log has it.
    """

    __slots__ = ("delay", "due_at", "fire_at", "key", "mark", "order", "recorded")

    def __init__(
        self,
        key: str,
        delay: int,
        when: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: WorkflowLoop,
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.key, self.delay, self.order = key, delay, loop.next_hash()
        self.due_at: int | None = None  # set where the code names a moment, not a delay
        self.fire_at: int | None = None
        self.recorded = False
        self.mark = 0
