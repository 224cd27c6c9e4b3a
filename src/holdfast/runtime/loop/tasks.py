"""Tasks, futures and handles of a workflow's loop.

asyncio keeps tasks and futures in sets. Sets of addresses iterate in another order on replay,
so ours hash by the order of their creation, plus a salt from the run: without it the tasks of
different runs would collide in asyncio's own set of all tasks.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.runtime.loop.keys import Scope

if TYPE_CHECKING:
    from holdfast.runtime.loop.loop import WorkflowLoop

_T = TypeVar("_T")


class Evicted(BaseException):
    """Raised by every durable or blocking call while an instance is closed; never leaves that."""


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
