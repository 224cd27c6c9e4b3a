"""WorkflowLoop: an asyncio event loop without a clock and without I/O.

A *drain* runs the code until every coroutine is blocked; then the run waits for the next event of
its log. Time stands still within a drain, and timers fire only when the log says so.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import sys
import time
import weakref
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, Unpack

import msgspec

from holdfast.errors import DeterminismError
from holdfast.runtime.loop.closing import close_coroutine, close_generator, unawaited_allowed
from holdfast.runtime.loop.guard import GuardedLoop
from holdfast.runtime.loop.tasks import (
    ActingAs,
    Evicted,
    NeverBegun,
    NumberingLoop,
    Scope,
    WorkflowFuture,
    WorkflowTask,
    WorkflowTimer,
    current_task,
    forget_waiting,
    inner_coroutine,
)
from holdfast.runtime.loop.user_code import line_of_creator, running_line
from holdfast.runtime.loop.watch import Watch

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

BLOCKING_SECONDS: Final = 2.0  # the time limit of a drain, by default
_LOOK_EVERY: Final = 256  # callbacks between two looks at the clock
_TASKS_A_LIMIT: Final = 10_000  # code gets the limit once more for each so many tasks,
_MOST_LIMITS: Final = 10  # but at most this many times
MAX_DELAY: Final = 8_000 * 365 * 86_400 * 1_000_000  # "for ever", as far as a date can say
_KEPT_TASKS: Final = 64
_get_running = events._get_running_loop  # pyright: ignore[reportPrivateUsage]
_set_running = events._set_running_loop  # pyright: ignore[reportPrivateUsage]
_get_hooks, _set_hooks = sys.get_asyncgen_hooks, sys.set_asyncgen_hooks


class TimerKeeper(Protocol):
    """Keeps the timers of a loop. It calls the loop's `make_ready` when one fires."""

    def start(self, timer: WorkflowTimer) -> None:
        """Keep a timer that the code has made."""
        ...

    def cancel(self, timer: WorkflowTimer) -> None:
        """Drop a timer that the code has cancelled."""
        ...


class SoonHandle(msgspec.Struct, eq=False, weakref=True):
    """A callback to run in this drain: like asyncio's own, but made in C, as each step has one."""

    _callback: Callable[..., object]
    _args: tuple[object, ...]
    _loop: NumberingLoop
    _context: contextvars.Context
    _cancelled: bool = False

    _repr = _source_traceback = None  # read by asyncio, set in debug mode alone
    _run, cancel, cancelled = asyncio.Handle._run, asyncio.Handle.cancel, asyncio.Handle.cancelled
    # Libraries ask `isinstance`.
    __class__ = property(lambda _: asyncio.Handle)  # pyright: ignore[reportIncompatibleMethodOverride]

    def get_context(self) -> contextvars.Context:
        return self._context


class WorkflowLoop(GuardedLoop, NumberingLoop):
    """The event loop of one run's code.

    `now` is the run's time in microseconds since 1970 UTC, and `root` the task of the run's own
    code; `ended` is True from the moment in which that ends. `broken` is the error for something
    that a replay could not repeat: it is kept here because code may swallow the exception. `fatal`
    is an exit (`SystemExit`, `KeyboardInterrupt`) that a task or a callback raised. `limit_seconds`
    limits a drain, and `progress` grows during a drain: a watchdog reads it. `caller` makes the
    durable calls of the code, and `keeper` keeps its timers.
    """

    limit_seconds, _task_limit = BLOCKING_SECONDS, _KEPT_TASKS
    caller: object = None
    keeper: TimerKeeper | None = None
    note_task: Callable[[Scope], None] | None = None  # is told of each new task
    fatal: BaseException | None = None
    _generators: weakref.WeakSet[AsyncGenerator[object, Any]] | None = None

    def __init__(self, salt: int) -> None:
        self.now = self.progress = 0
        self.tasks: list[WorkflowTask[Any]] = []  # strong: asyncio itself keeps them weakly
        self.root_scope = Scope("")
        self.root: WorkflowTask[object] | None = None
        self.closing = self.ended = False
        self.broken: DeterminismError | None = None
        self.problems: list[str] = []
        self.watch: Watch | None = None  # finds calls of clocks and random numbers
        self._ready: collections.deque[asyncio.Handle] = collections.deque()
        self._last_hash = salt

    @functools.cached_property
    def callback_scope(self) -> Scope:
        return Scope("~")

    def salt(self, salt: int) -> None:
        """Set the number that tasks, futures and timers are numbered from, before there are any."""
        self._last_hash = salt

    @property
    def last_hash(self) -> int:
        """The number of the newest task, future or timer."""
        return self._last_hash

    def next_hash(self) -> int:
        """Return the number of a new task, future or timer: its hash."""
        self._last_hash += 1
        return self._last_hash

    # What asyncio asks of a loop

    get_debug = bool  # pyright: ignore[reportAssignmentType]  # False, with no frame for each step

    def set_debug(self, enabled: bool) -> None:
        """Do nothing: debug mode would only slow the loop down."""

    def time(self) -> float:
        return self.now / 1e6

    def is_running(self) -> bool:
        return _get_running() is self

    def is_closed(self) -> bool:
        return self.closing

    def create_future(self) -> asyncio.Future[Any]:
        return WorkflowFuture(self)

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        eager_start: object = None,  # see `_eager_task`
    ) -> asyncio.Task[_T]:
        if self.closing:
            coro.close()
            return WorkflowTask(NeverBegun[_T](), self, self.callback_scope)
        scope = self.scope().child(getattr(coro, "__name__", "task"))
        if self.note_task is not None:
            self.note_task(scope)
        task = WorkflowTask(
            coro, self, scope, name=scope.path if name is None else name, context=context
        )
        self.keep(task)
        if self.observer is not None:
            self.observer.begin(task)
        return task

    def keep(self, task: WorkflowTask[Any]) -> None:
        """Keep a reference to a task until it is done."""
        self.tasks.append(task)
        if len(self.tasks) > self._task_limit:
            self.tasks = [task for task in self.tasks if not task.done()]
            self._task_limit = max(_KEPT_TASKS, 2 * len(self.tasks))

    def scope(self) -> Scope:
        """Return the scope in which the running code's calls get their keys."""
        task = current_task(self)
        if isinstance(task, WorkflowTask):
            return task.scope
        if task is not None:  # it could not be closed; its cleanup would run when it is freed
            raise self.refuse("asyncio.Task() in place of asyncio.create_task()")
        return self.callback_scope

    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        handle: asyncio.Handle = SoonHandle(callback, args, self, context)  # type: ignore[assignment]
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        if _get_running() is self:
            return self.call_soon(callback, *args, context=context)
        # In that thread, RuntimeError is what libraries expect of a closed loop.
        raise RuntimeError(str(self.refuse("loop.call_soon_threadsafe() or a thread")))

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.start_timer("timer", when, callback, *args, context=context)

    def start_timer(
        self,
        name: str,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: contextvars.Context | None = None,
        due_at: int | None = None,
    ) -> WorkflowTimer:
        """Create a durable timer, due at the moment `due_at` if that is given."""
        delay = round(max(0.0, min((when - self.time()) * 1e6, MAX_DELAY)))
        key = self.scope().key(name)
        timer = WorkflowTimer(key, delay, when, callback, args, self, context, due_at)
        if self.keeper is not None and not self.closing:
            self.keeper.start(timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, WorkflowTimer) and self.keeper is not None and not self.closing:
            self.keeper.cancel(handle)

    def make_ready(self, handle: asyncio.Handle) -> None:
        """Run the callback of a timer that has fired in the next drain."""
        self._ready.append(handle)

    def get_exception_handler(self) -> None:
        return None

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # The garbage collector may call this at any moment, so it must not run workflow code.
        if not self.closing:
            self.problems.append(f"{context.get('message')}: {context.get('exception')!r}")

    default_exception_handler = call_exception_handler

    async def shutdown_asyncgens(self) -> None:
        """Return at once: abandoned generators are dropped."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Return at once: the loop has no executor."""

    def refuse(
        self, what: str, way_out: str = "do it in a step", line: str | None = None
    ) -> BaseException:
        if self.closing:
            return Evicted()
        if self.broken is None:
            line = line or running_line() or line_of_creator(self.tasks, current_task(self))
            at = "" if line is None else f"{line}: "
            text = f"{at}{what} inside a workflow: a replay could not repeat it; {way_out}"
            self.broken = DeterminismError(text, line=line)
        return self.broken

    # Running

    def drain(self) -> None:
        """Run until every coroutine is blocked.

        Call it from a plain callback of the worker's loop, never from inside a task of it:
        asyncio tracks the running task per thread on Python 3.14.
        """
        ready = self._ready
        if not ready:
            return
        outer, hooks = _get_running(), _get_hooks()
        _set_running(self)
        _set_hooks(self._iterated, self._abandoned)
        self.progress += 1
        left, began = _LOOK_EVERY, -1.0
        watching = self.watch is not None and self.watch.begin()
        try:
            while ready and self.broken is None:
                handle = ready.popleft()
                if not handle._cancelled:  # pyright: ignore[reportPrivateUsage]
                    try:
                        handle._run()  # pyright: ignore[reportPrivateUsage]
                    except (SystemExit, KeyboardInterrupt) as exc:
                        # The task also keeps it as its outcome. It must not end the worker.
                        self.fatal, self.ended = self.fatal or exc, True
                left -= 1
                if not left:
                    left, began = _LOOK_EVERY, self._look_at_clock(began)
        finally:
            if watching:
                Watch.end()
            _set_hooks(*hooks)
            _set_running(outer)

    def _look_at_clock(self, began: float) -> float:
        """Stop a drain that takes too long; return when its timing began.

        Only processor time of this thread counts: on a busy or suspended machine, or in a debugger,
        code does not become a busy wait. A finite gather of very many calls gets more time.
        """
        self.progress += 1
        now = time.thread_time()
        if began < 0:
            return now
        limits = min(1 + len(self.tasks) / _TASKS_A_LIMIT, _MOST_LIMITS)
        if now - began > limits * self.limit_seconds and self.broken is None:
            self.broken = DeterminismError(
                f"the workflow never blocks: it has run for {now - began:.1f} s without waiting "
                "for a step, a timer or a signal. Does it wait in a loop, with sleep(0)?"
            )
        return began

    def _iterated(self, generator: AsyncGenerator[object, Any]) -> None:
        if self._generators is None:
            self._generators = weakref.WeakSet()
        self._generators.add(generator)

    def _abandoned(self, generator: AsyncGenerator[object, Any]) -> None:
        # Its `finally` would run when the garbage collector chooses, so it does not run at all.
        if not self.closing:
            name = getattr(generator, "__name__", "?")
            self.problems.append(
                f"the async generator {name} was abandoned, and its cleanup did not run: "
                "iterate over it inside `async with contextlib.aclosing(...)`"
            )

    # Closing

    def drop(self) -> None:
        """Close every coroutine and every async generator. Idempotent.

        Their synchronous `finally` code runs: Python offers no other way. Each durable or blocking
        call in it returns something that blocks for ever and does nothing. Code that tries again
        for ever would catch an error.
        """
        if self.closing:
            return
        self.closing = True
        unfinished = False
        for task in self.tasks:
            if not task.done():
                unfinished = True
            elif task._log_traceback:
                task.exception()  # mark it as seen, so that asyncio does not report it
        if unfinished or self._generators:
            # In its own context, so that no context variable that the code sets remains.
            drop = self._drop_code
            contextvars.Context().run(drop if self.watch is None else unawaited_allowed()(drop))
        self._ready.clear()
        self.tasks.clear()
        self.root = self.keeper = self.note_task = self.observer = None

    def _drop_code(self) -> None:
        outer, hooks = _get_running(), _get_hooks()
        _set_running(self)
        _set_hooks(self._iterated, self._abandoned)
        try:
            for task in self.tasks:
                if not task.done():
                    with ActingAs(task):
                        close_coroutine(inner_coroutine(task.get_coro()))
                    forget_waiting(task)
            self._drop_generators()
        finally:
            _set_hooks(*hooks)
            _set_running(outer)

    def _drop_generators(self) -> None:
        while generators := self._generators:
            self._generators = None
            for generator in list(generators):
                with ActingAs(self.tasks[0]):
                    close_generator(generator)
