"""Run coroutines for synchronous callers, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator
from typing import TypeVar, cast

from holdfast.errors import ConfigurationError

T = TypeVar("T")


class Portal:
    """A thread with an event loop. Any thread may call through it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_open(self) -> bool:
        """Whether the thread runs."""
        return self._loop is not None

    def open(self) -> None:
        """Start the thread. Idempotent."""
        if self._thread is None:
            self._loop = loop = asyncio.new_event_loop()
            # A daemon: a program that forgets to close its client can still end.
            self._thread = threading.Thread(
                target=_serve, args=(loop,), name="holdfast-client", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop the thread. Idempotent."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def call(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine to its end and return its result; interrupted, it is cancelled."""
        if self._loop is None:
            coroutine.close()
            raise ConfigurationError("the client is not open: use `with SyncClient() as client`")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Generator[T]:
        """Yield what an asynchronous iterator yields."""
        try:
            while True:
                try:
                    item = self.call(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if isinstance(items, AsyncGenerator) and self.is_open:
                self.call(items.aclose())


def finish(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine that waits for nothing to its end, in the calling thread."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast(T, stop.value)
    raise RuntimeError("the coroutine waits for something")


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
