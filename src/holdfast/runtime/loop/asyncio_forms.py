"""Replacements for asyncio functions whose own behaviour would differ between replays.

On every loop but a workflow's they behave as asyncio's own.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from asyncio import mixins
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from typing import Any, Final, TypeVar

from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.runtime.loop.tasks import WorkflowFuture, WorkflowTask, note_wait
from holdfast.runtime.loop.user_code import line_of_error

_Gathering: Final[type[asyncio.Future[Any]]] = vars(asyncio.tasks)["_GatheringFuture"]
_LoopBound: Final[Any] = vars(mixins)["_LoopBoundMixin"]  # of Lock and such
_NUMBERED: Final = (WorkflowTask, WorkflowFuture, _Gathering)

_T = TypeVar("_T")

_get_running = asyncio.events._get_running_loop  # pyright: ignore[reportPrivateUsage]
_installed = False


def install() -> None:
    """Replace the functions in asyncio. Idempotent."""
    global _installed
    if _installed:
        return
    _installed = True
    asyncio.as_completed = asyncio.tasks.as_completed = _ordered(asyncio.as_completed)
    asyncio.wait = asyncio.tasks.wait = _ordered_wait(asyncio.wait)
    asyncio.all_tasks = asyncio.tasks.all_tasks = _ordered_tasks(asyncio.all_tasks)
    asyncio.wrap_future = asyncio.futures.wrap_future = _threadless(asyncio.wrap_future)
    _LoopBound._get_loop = _telling(_LoopBound._get_loop)
    _Gathering.__hash__ = _number_of  # type: ignore[method-assign, assignment]
    _Gathering.__await__ = _telling_wait(_Gathering.__await__)  # type: ignore[method-assign]
    if sys.version_info >= (3, 12):
        factory = asyncio.create_eager_task_factory(_eager_task)
        asyncio.eager_task_factory = asyncio.tasks.eager_task_factory = factory
    if sys.version_info < (3, 12):
        asyncio.wait_for = asyncio.tasks.wait_for = _taskless(asyncio.wait_for)
    if sys.version_info < (3, 11, 3):
        _expire_after_cancels(asyncio.Timeout)


def _telling(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a `_get_loop` whose error says why an object belongs to another loop, and where.

    asyncio asks for the loop of a Lock, a Queue and the like when code must wait for it.
    """

    @functools.wraps(original)
    def _get_loop(bound: Any) -> Any:
        try:
            return original(bound)
        except RuntimeError as error:
            raise foreign(error, f"an asyncio.{type(bound).__name__}") from None

    return _get_loop


def is_foreign(error: BaseException) -> bool:
    """Return True if asyncio says that code awaits a future or task of another event loop."""
    return isinstance(error, RuntimeError) and "attached to a different loop" in str(error)


def foreign(error: BaseException, what: str) -> BaseException:
    """Return the error to raise for the use of what belongs to another event loop.

    In a workflow, the run is stuck: corrected code can continue it.
    """
    loop = _get_running()
    if isinstance(loop, WorkflowLoop):
        return loop.refuse(
            f"a wait for {what} of another event loop, as that of a module or of another run",
            "make it inside the workflow; to wait for others, use a signal, an activity or a step",
            line_of_error(error),
        )
    explained = RuntimeError(
        f"{error}: it was used before on another event loop, as that of a workflow or of a test "
        "before; make it on the loop that uses it, as in an app.lifespan of the worker"
    )
    return explained.with_traceback(error.__traceback__)


def _ordered(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return an `as_completed` that keeps the order of coroutines: asyncio puts them into a set."""

    @functools.wraps(original)
    def as_completed(
        fs: Iterable[Awaitable[Any]], *, timeout: float | None = None
    ) -> Iterator[Any]:
        single = asyncio.isfuture(fs) or asyncio.iscoroutine(fs)  # a mistake: asyncio says so
        if isinstance(_get_running(), WorkflowLoop) and not single:
            fs = [asyncio.ensure_future(one) for one in dict.fromkeys(fs)]
        return original(fs, timeout=timeout)

    return as_completed


def _number_of(gathering: asyncio.Future[Any]) -> int:
    """Return the hash of the future of a gather(): on a workflow's loop, the loop's next number."""
    number: int | None = getattr(gathering, "_holdfast_number", None)
    if number is None:
        loop = gathering.get_loop()
        number = loop.next_hash() if isinstance(loop, WorkflowLoop) else object.__hash__(gathering)
        gathering._holdfast_number = number  # type: ignore[attr-defined]  # it takes attributes
    return number


def _telling_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `__await__` for gather() that tells a workflow's loop of the wait."""

    def wait(gathering: asyncio.Future[Any]) -> Any:
        note_wait(gathering.get_loop())
        return original(gathering)

    return wait


def _ordered_wait(
    original: Callable[..., Coroutine[Any, Any, Any]],
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a `wait` whose sets keep the order of the given futures, if these hash by address.

    Futures made by `asyncio.Future()` do. Tasks and futures that the loop makes hash by number.
    """

    @functools.wraps(original)
    async def wait(
        fs: Iterable[Any], *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED
    ) -> tuple[set[Any], set[Any]]:
        plain = False
        if isinstance(_get_running(), WorkflowLoop) and not asyncio.isfuture(fs):
            fs = list(fs)
            plain = not all(isinstance(each, _NUMBERED) for each in fs)
        done, pending = await original(fs, timeout=timeout, return_when=return_when)
        if plain:
            return _in_order(fs, done), _in_order(fs, pending)
        return done, pending

    return wait


def _ordered_tasks(original: Callable[..., set[Any]]) -> Callable[..., set[Any]]:
    """Return an `all_tasks` that keeps the order in which a workflow has made its tasks.

    asyncio finds them among the tasks of all runs of the process, and not always in this order.
    """

    @functools.wraps(original)
    def all_tasks(loop: asyncio.AbstractEventLoop | None = None) -> set[Any]:
        running = _get_running() if loop is None else loop
        if isinstance(running, WorkflowLoop):
            return OrderedSet(task for task in running.tasks if not task.done())
        return original(loop)

    return all_tasks


def _in_order(order: Iterable[Any], found: set[Any]) -> set[Any]:
    return OrderedSet(each for each in order if each in found)


def _threadless(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `wrap_future` that refuses a thread's future in workflows, done or not."""

    @functools.wraps(original)
    def wrap_future(future: Any, *, loop: Any = None) -> Any:
        running = _get_running() if loop is None else loop
        if isinstance(running, WorkflowLoop) and isinstance(future, Future):
            raise running.refuse("asyncio.wrap_future(), or a thread,")
        return original(future, loop=loop)

    return wrap_future


def _eager_task(coro: Any, *, loop: Any, **options: Any) -> asyncio.Task[Any]:
    """Make a task as `asyncio.Task` does; in workflows, as `asyncio.create_task`.

    There an eager task begins as others do: so the order of calls is the same on every version of
    Python, and no code begins inside an `except` of the code that makes its task.
    """
    if isinstance(loop, WorkflowLoop):
        return loop.create_task(coro, **options)
    return asyncio.Task(coro, loop=loop, **options)


def _taskless(
    original: Callable[..., Coroutine[Any, Any, Any]],
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a `wait_for` that makes no task, as from Python 3.12 on.

    So the keys of calls are the same on every version of Python.
    """

    @functools.wraps(original)
    def wait_for(fut: Awaitable[_T], timeout: float | None) -> Coroutine[Any, Any, _T]:
        if isinstance(_get_running(), WorkflowLoop):
            return _wait_for(fut, timeout)
        return original(fut, timeout)

    return wait_for


async def _wait_for(awaitable: Awaitable[_T], timeout: float | None) -> _T:
    if timeout is None or timeout > 0:
        async with asyncio.timeout(timeout):
            return await awaitable
    future = asyncio.ensure_future(awaitable)
    if future.done():
        return future.result()
    future.cancel()
    await asyncio.wait([future])
    try:
        return future.result()
    except asyncio.CancelledError as exc:
        raise TimeoutError from exc


def _expire_after_cancels(kind: Any) -> None:
    """Let a timeout expire also in code that was cancelled before, as from Python 3.11.3 on.

    Before, it raised CancelledError there: a run that was cancelled ended as if it had let this be.
    """
    begin, end = kind.__aenter__, kind.__aexit__

    async def enter(timeout: Any) -> Any:
        await begin(timeout)
        timeout._cancels = timeout._task.cancelling()
        return timeout

    async def leave(timeout: Any, found: Any, error: Any, trace: Any) -> None:
        is_expired = timeout.expired() and found is asyncio.CancelledError
        is_expired = is_expired and isinstance(_get_running(), WorkflowLoop)
        with suppress(TimeoutError) if is_expired else nullcontext():
            await end(timeout, found, error, trace)
        if is_expired and timeout._task.cancelling() <= timeout._cancels:
            raise TimeoutError from error

    kind.__aenter__, kind.__aexit__ = enter, leave


class OrderedSet(set[_T]):
    """A set that iterates in the order of insertion; so do the sets that are made from it.

    For futures that hash by their addresses.
    """

    def __init__(self, elements: Iterable[_T] = ()) -> None:
        self._order: dict[_T, None] = dict.fromkeys(elements)
        super().__init__(self._order)

    def __iter__(self) -> Iterator[_T]:
        return iter([each for each in self._order if each in self])

    def add(self, element: _T, /) -> None:
        if element not in self:
            self._order.pop(element, None)  # it may have been here before
            self._order[element] = None
        super().add(element)

    def update(self, *others: Iterable[_T]) -> None:
        for other in others:
            for element in other:
                self.add(element)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def pop(self) -> _T:
        for first in self:
            self.remove(first)
            return first
        raise KeyError("pop from an empty set")

    def copy(self) -> OrderedSet[_T]:
        return OrderedSet(self)

    def union(self, *others: Iterable[Any]) -> OrderedSet[Any]:
        joined = self.copy()
        joined.update(*others)
        return joined

    def intersection(self, *others: Iterable[Any]) -> OrderedSet[Any]:
        return self._within(set(self).intersection(*others))

    def difference(self, *others: Iterable[Any]) -> OrderedSet[Any]:
        return self._within(set(self).difference(*others))

    def symmetric_difference(self, other: Iterable[Any]) -> OrderedSet[Any]:
        others = OrderedSet(other)
        return self.difference(others).union(others.difference(self))

    def symmetric_difference_update(self, other: Iterable[_T]) -> None:
        left = self.symmetric_difference(other)
        self.clear()
        self.update(left)

    def __or__(self, other: Any) -> Any:
        return self.union(other)

    def __and__(self, other: Any) -> Any:
        return self.intersection(other)

    def __sub__(self, other: Any) -> Any:
        return self.difference(other)

    def __xor__(self, other: Any) -> Any:
        return self.symmetric_difference(other)

    def __ixor__(self, other: Any) -> Any:
        self.symmetric_difference_update(other)
        return self

    __ror__, __rand__, __rxor__ = __or__, __and__, __xor__

    def _within(self, kept: set[Any]) -> OrderedSet[Any]:
        return OrderedSet(each for each in self if each in kept)
