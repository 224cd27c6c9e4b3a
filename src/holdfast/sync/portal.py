"""Run coroutines for synchronous callers, on an event loop in a thread of its own.

A fork copies the event loop but not its thread: in the child the loop does not run, and its sockets
belong to the parent. So the child drops the loop without touching it, and opens its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from typing import Final, TypeVar, cast
from weakref import WeakSet

from holdfast.errors import ConfigurationError

T = TypeVar("T")

_NOT_OPEN: Final = (
    "the client is not open: use `with SyncClient() as client`, or, in a process that keeps it, "
    "`client = SyncClient().open()`"
)

_CLOSED: Final = (
    "the client was closed and opened again before this call had an answer: what it has done is "
    "not known, so call again with the same key"
)


class Portal:
    """A thread with an event loop. Any thread may call through it.

    In a process that was forked while it was open, the first call opens it by `open_anew`.
    """

    def __init__(self, open_anew: Callable[[], object]) -> None:
        self._open_anew = open_anew
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._forked = False  # while it was open, and it has not been opened since
        self._lock, self._is_opening, self._is_closing = threading.RLock(), False, False
        _portals.add(self)

    @property
    def is_open(self) -> bool:
        """True if the thread runs. The end of the interpreter stops it, as any daemon."""
        return self._loop is not None and not sys.is_finalizing()

    def open(self) -> None:
        """Start the thread. Idempotent."""
        with self._lock:
            if self._thread is None:
                self._loop = loop = asyncio.new_event_loop()
                # A daemon: a program that forgets to close its client can still end.
                self._thread = threading.Thread(
                    target=_serve, args=(loop,), name="holdfast-client", daemon=True
                )
                self._thread.start()

    def close(self, last: Callable[[], Coroutine[object, object, object]] | None = None) -> None:
        """Call `last`, and stop the thread. Idempotent: others wait for a close under way.

        Calls that have not ended raise ConfigurationError.
        """
        self._refuse_own_thread()
        with self._lock:
            if not self.is_open or self._is_closing:  # by a signal's handler in a close
                return
            loop, thread, self._is_closing = self._loop, self._thread, True
            try:
                if last is not None:
                    self.call(last())
            finally:
                self._loop = self._thread = None
                self._is_closing = False
                if loop is not None:
                    loop.call_soon_threadsafe(loop.stop)
        if thread is not None:
            thread.join()

    def call(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine and return its result. If the caller is interrupted, it is cancelled.

        Raises ConfigurationError if the portal is not open, or is closed meanwhile.
        """
        try:
            future, loop = self._begin(coroutine)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except CancelledError:
            if self._loop is loop and self.is_open:
                raise
            raise ConfigurationError(_CLOSED if self.is_open else _NOT_OPEN) from None
        except BaseException:
            future.cancel()
            raise

    def _begin(
        self, coroutine: Coroutine[object, object, T]
    ) -> tuple[Future[T], asyncio.AbstractEventLoop]:
        self._refuse_own_thread()
        if self._forked:
            self._open_after_fork()
        with self._lock:  # what has begun before `close` is ended by it
            if self._loop is None or not self.is_open:
                raise ConfigurationError(_NOT_OPEN)
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop), self._loop

    def _refuse_own_thread(self) -> None:
        if self._thread is threading.current_thread():
            raise ConfigurationError(
                "this thread is the client's own, and would wait for itself: call from another "
                "thread, or use another client"
            )

    def iterate(self, items: AsyncIterator[T]) -> Generator[T]:
        """Yield what an asynchronous iterator yields."""
        began: asyncio.AbstractEventLoop | None = None
        try:
            while True:
                if began is not None and began is not self._loop and self._forked:
                    raise ConfigurationError(
                        "this iterator was begun before the process was forked: begin it again"
                    )
                try:
                    item = self.call(_next(items))
                except StopAsyncIteration:
                    return
                began = self._loop
                yield item
        finally:
            if isinstance(items, AsyncGenerator) and self.is_open and began is self._loop:
                self.call(items.aclose())

    def _open_after_fork(self) -> None:
        """Open again in the child: one of its threads does it, the others wait for it."""
        with self._lock:
            if self._forked and not self._is_opening:  # the opening itself calls, too
                self._is_opening = True
                try:
                    self._open_anew()
                    self._forked = False
                finally:
                    self._is_opening = False

    def forget(self) -> None:
        """Drop the parent's loop and its sockets untouched, in a child that was just forked."""
        self._lock, self._is_opening, self._is_closing = threading.RLock(), False, False
        if self._loop is not None:
            make_immortal([self._loop, self._thread, *asyncio.all_tasks(self._loop)])
            self._loop = self._thread = None
            self._forked = True


def make_immortal(value: object) -> None:
    """Keep an object until the process has ended, also while the interpreter shuts down.

    If a connection were collected, it would remove itself from the event queue that parent and
    child share.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def finish(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine that never suspends, in the calling thread, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast(T, stop.value)
    raise RuntimeError("the coroutine was suspended: it waits for something")


def _forget_all() -> None:
    for portal in list(_portals):
        portal.forget()


_portals: WeakSet[Portal] = WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
